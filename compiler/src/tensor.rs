//! Constant tensors: an element type, a shape, and bytes that are owned, mapped from a file, or computed.

mod bytes;
mod computed;
mod few_bits;

pub use bytes::{Bytes, OwnedBytes};
pub(crate) use computed::Computation;
pub use computed::ComputedBytes;
pub use few_bits::FewBits;

use crate::{
    error::{Error, Result},
    scalar::Scalar,
};
use std::{borrow::Cow, cmp::Ordering, fmt, sync::Arc};
use symshape_runtime::{DType, Outputs, TensorRef};
use zerocopy::FromBytes;

/// Bytes of a computed tensor that are in memory at once.
const CHUNK_BYTES: usize = 1 << 20;

/// Elements that are tested together.
const TESTED_ELEMS: usize = 1 << 10;

/// A dense row-major tensor. Its elements are little-endian bytes, or computed from integers of few bits. Clones share
/// the memory.
#[derive(Clone)]
pub struct Tensor {
    dtype: DType,
    shape: Vec<usize>,
    elements: Elements,
}

/// The elements of a tensor.
#[derive(Clone)]
enum Elements {
    Bytes(Bytes),
    FewBits(Arc<FewBits>),
}

impl Tensor {
    /// A tensor of these bytes, or `None` if their count does not match the shape.
    pub fn new(dtype: DType, shape: Vec<usize>, bytes: Bytes) -> Option<Tensor> {
        let elems = shape.iter().try_fold(1usize, |n, dim| n.checked_mul(*dim))?;
        let fits = elems.checked_mul(dtype.size_bytes())? == bytes.len();
        fits.then_some(Tensor { dtype, shape, elements: Elements::Bytes(bytes) })
    }

    /// A tensor of one axis whose bytes are computed when they are read. `None` unless the elements have a whole number
    /// of bytes each.
    pub(crate) fn computed(dtype: DType, computation: impl Computation + 'static) -> Option<Tensor> {
        let bytes = Bytes::computed(computation);
        Tensor::new(dtype, vec![bytes.len() / dtype.size_bytes()], bytes)
    }

    /// An `f32` tensor of these weights.
    pub fn from_few_bits(weights: FewBits) -> Tensor {
        let shape = weights.shape().to_vec();
        Tensor { dtype: DType::F32, shape, elements: Elements::FewBits(Arc::new(weights)) }
    }

    /// The integers and scales that the elements are computed from, if the tensor has them.
    pub fn few_bits(&self) -> Option<&FewBits> {
        match &self.elements {
            Elements::Bytes(_) => None,
            Elements::FewBits(weights) => Some(weights),
        }
    }

    /// A tensor of these elements, converted to `dtype`. `None` if their count does not match the shape.
    pub fn from_scalars(dtype: DType, shape: Vec<usize>, elems: &[Scalar]) -> Option<Tensor> {
        let width = dtype.size_bytes();
        let mut bytes = Vec::with_capacity(elems.len() * width);
        for elem in elems {
            bytes.extend_from_slice(&elem.bits().to_le_bytes()[..width]);
        }
        Tensor::new(dtype, shape, Bytes::Owned(bytes.into()))
    }

    /// An `f32` tensor of these elements, or `None` if their count does not match the shape.
    pub fn from_f32(shape: Vec<usize>, elems: &[f32]) -> Option<Tensor> {
        Tensor::from_f32s(shape, elems.to_vec())
    }

    /// As [`Tensor::from_f32`], without a copy.
    pub(crate) fn from_f32s(shape: Vec<usize>, elems: Vec<f32>) -> Option<Tensor> {
        Tensor::new(DType::F32, shape, Bytes::Owned(OwnedBytes::of_floats(elems)))
    }

    /// An `i64` tensor of these elements, or `None` if their count does not match the shape.
    pub fn from_i64(shape: Vec<usize>, elems: &[i64]) -> Option<Tensor> {
        let bytes: Vec<u8> = elems.iter().flat_map(|x| x.to_le_bytes()).collect();
        Tensor::new(DType::I64, shape, Bytes::Owned(bytes.into()))
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The size of each axis.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The number of elements.
    pub fn elems(&self) -> usize {
        match &self.elements {
            Elements::Bytes(bytes) => bytes.len() / self.dtype.size_bytes(),
            Elements::FewBits(weights) => weights.elems(),
        }
    }

    /// Bytes of the elements, which are not expanded.
    pub fn size_bytes(&self) -> usize {
        self.elems() * self.dtype.size_bytes()
    }

    /// The shared memory of the elements.
    pub fn shared_bytes(&self) -> Bytes {
        match &self.elements {
            Elements::Bytes(bytes) => bytes.clone(),
            Elements::FewBits(weights) => Bytes::Owned(weights.expanded().clone()),
        }
    }

    /// The bytes of the elements for a writer. Weights of few bits are expanded while they are written.
    pub(crate) fn written_bytes(&self) -> Bytes {
        match &self.elements {
            Elements::Bytes(bytes) => bytes.clone(),
            Elements::FewBits(weights) => Bytes::computed(few_bits::Expansion(weights.clone())),
        }
    }

    /// The elements in little-endian bytes. Weights of few bits are expanded on the first call, to four bytes each.
    pub fn bytes(&self) -> &[u8] {
        match &self.elements {
            Elements::Bytes(bytes) => bytes,
            Elements::FewBits(weights) => weights.expanded(),
        }
    }

    /// As [`Tensor::bytes`], for a caller that reads them once: they don't stay in memory if they are computed.
    pub(crate) fn read(&self) -> Cow<'_, [u8]> {
        match &self.elements {
            Elements::Bytes(bytes) => bytes.read(),
            Elements::FewBits(weights) => Cow::Borrowed(weights.expanded()),
        }
    }

    /// Some of the first bytes, or all of them if they are in memory or mapped.
    pub(crate) fn head(&self) -> &[u8] {
        match &self.elements {
            Elements::Bytes(bytes) => bytes.head(),
            Elements::FewBits(weights) => weights.expanded(),
        }
    }

    /// Calls `visit` with the bytes of all elements, in chunks of about `chunk_bytes`, until an error.
    pub(crate) fn visit<E>(
        &self,
        chunk_bytes: usize,
        visit: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        match &self.elements {
            Elements::Bytes(bytes) => bytes.visit(chunk_bytes, visit),
            Elements::FewBits(weights) => weights.expanded().chunks(chunk_bytes).try_for_each(visit),
        }
    }

    /// Whether `holds` is true for all parts of `part_bytes` bytes each, which are read up to the first other one. Of
    /// computed bytes, a part is a whole number of units, or a unit is one of parts. `false` if bytes are left over.
    pub(crate) fn all_parts(&self, part_bytes: usize, holds: impl Fn(&[u8]) -> bool) -> bool {
        let chunk_bytes = (CHUNK_BYTES / part_bytes).max(1) * part_bytes;
        let visit = &mut |chunk: &[u8]| {
            let (parts, rest) = (chunk.chunks_exact(part_bytes), chunk.len() % part_bytes);
            if rest == 0 && parts.into_iter().all(&holds) { Ok(()) } else { Err(()) }
        };
        self.visit(chunk_bytes, visit).is_ok()
    }

    /// Whether `holds` is true for each element of an `f32` tensor, which is read up to about the first other one.
    pub(crate) fn all_f32s(&self, holds: impl Fn(f32) -> bool) -> bool {
        let all = |bytes: &[u8]| {
            // Vectors compute this, because there is no branch for each element.
            let all = |chunk: &[[u8; 4]]| {
                chunk.iter().fold(true, |all, bits| all & holds(f32::from_le_bytes(*bits)))
            };
            bytes.as_chunks::<4>().0.chunks(TESTED_ELEMS).all(all)
        };
        match &self.elements {
            Elements::Bytes(bytes) => {
                let head = bytes.head();
                let visit = &mut |chunk: &[u8]| if all(chunk) { Ok(()) } else { Err(()) };
                all(head) && (head.len() == bytes.len() || bytes.visit(CHUNK_BYTES, visit).is_ok())
            }
            Elements::FewBits(weights) => (0..weights.elems()).all(|idx| holds(weights.get(idx))),
        }
    }

    /// Tells the system that the elements are not needed soon, if they are in a mapped file.
    pub(crate) fn release(&self) {
        if let Elements::Bytes(bytes) = &self.elements {
            bytes.release();
        }
    }

    /// Bytes that identify the tensor in memory and, but for scales, its contents: those of the elements, or the
    /// integers that they are computed from.
    pub(crate) fn stored(&self) -> &[u8] {
        match &self.elements {
            Elements::Bytes(bytes) => bytes,
            Elements::FewBits(weights) => weights.codes(),
        }
    }

    /// Orders by type and contents, without the shape. Equal tensors have equal elements.
    fn compare(&self, other: &Tensor) -> Ordering {
        let kind = |tensor: &Tensor| (tensor.dtype as u32, tensor.elems());
        kind(self)
            .cmp(&kind(other))
            .then_with(|| {
                let scaling = self.few_bits().map(FewBits::scaling);
                scaling.cmp(&other.few_bits().map(FewBits::scaling))
            })
            .then_with(|| match (&self.elements, &other.elements) {
                (Elements::Bytes(a), Elements::Bytes(b)) => a.compare(b),
                _ => self.stored().cmp(other.stored()),
            })
    }

    /// Element `idx` in row-major order.
    ///
    /// # Panics
    /// If `idx` is not below [`Tensor::elems`].
    pub fn get(&self, idx: usize) -> Scalar {
        let bytes = match &self.elements {
            Elements::Bytes(bytes) => bytes,
            Elements::FewBits(weights) => return Scalar::f32(weights.get(idx)),
        };
        let width = self.dtype.size_bytes();
        let mut bits = [0; 8];
        bits[..width].copy_from_slice(&bytes[idx * width..(idx + 1) * width]);
        Scalar::from_bits(self.dtype, u64::from_le_bytes(bits))
    }

    /// All elements of an `f32` tensor. They are copied only if their bytes are not aligned, or computed.
    pub(crate) fn f32s(&self) -> Cow<'_, [f32]> {
        match &self.elements {
            Elements::Bytes(bytes) => {
                let bytes = bytes.read();
                if cfg!(target_endian = "little")
                    && let Cow::Borrowed(bytes) = bytes
                    && let Ok(floats) = <[f32]>::ref_from_bytes(bytes)
                {
                    return Cow::Borrowed(floats);
                }
                bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
            }
            Elements::FewBits(weights) => (0..weights.elems()).map(|idx| weights.get(idx)).collect(),
        }
    }

    /// Whether no element is an infinity or NaN.
    pub(crate) fn is_finite(&self) -> bool {
        match &self.elements {
            Elements::Bytes(bytes) if self.dtype == DType::F32 => {
                let mut elements = bytes.as_chunks::<4>().0.iter();
                elements.all(|bytes| f32::from_le_bytes(*bytes).is_finite())
            }
            _ => (0..self.elems()).all(|idx| self.get(idx).as_f64().is_finite()),
        }
    }

    /// All elements as integers, see [`Scalar::as_i64`].
    pub fn to_i64s(&self) -> Vec<i64> {
        (0..self.elems()).map(|idx| self.get(idx).as_i64()).collect()
    }
}

/// The tensors as arguments of a call.
pub(crate) fn refs(tensors: &[Tensor]) -> Result<Vec<TensorRef<'_>>> {
    let refs = tensors.iter().map(|tensor| {
        TensorRef::from_bytes(tensor.dtype(), tensor.shape(), tensor.bytes())
            .map_err(|error| Error::internal(error.to_string()))
    });
    refs.collect()
}

/// Copies the outputs of a call.
pub(crate) fn copies(outputs: &Outputs<'_>) -> Vec<Tensor> {
    (0..outputs.len()).map(|idx| copy(&outputs.get(idx))).collect()
}

/// A copy of a tensor.
pub(crate) fn copy(tensor: &TensorRef<'_>) -> Tensor {
    let bytes = Bytes::Owned(tensor.bytes().into());
    Tensor::new(tensor.dtype(), tensor.shape().to_vec(), bytes).expect("a tensor has its shape's size")
}

/// A tensor that is ordered by type and bytes, without its shape: the key of a map that finds equal constants.
#[derive(Clone)]
pub(crate) struct ByContent(pub(crate) Tensor);

impl Ord for ByContent {
    fn cmp(&self, other: &ByContent) -> Ordering {
        self.0.compare(&other.0)
    }
}

impl PartialOrd for ByContent {
    fn partial_cmp(&self, other: &ByContent) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ByContent {
    fn eq(&self, other: &ByContent) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for ByContent {}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({}{:?})", self.dtype, self.shape)
    }
}

/// The 64-bit FNV-1a hash of some bytes, by which readers of a text tell two elided constants apart.
pub fn fingerprint(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// All points of a box, in row-major order.
pub(crate) fn points(extents: &[i64]) -> Vec<Vec<i64>> {
    extents.iter().fold(vec![vec![]], |points, extent| {
        let longer = |point: &Vec<i64>| {
            let point = point.clone();
            (0..*extent).map(move |at| [&point[..], &[at]].concat())
        };
        points.iter().flat_map(longer).collect()
    })
}
