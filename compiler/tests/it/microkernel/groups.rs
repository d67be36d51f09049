//! Elements of neighbouring streams that are stored together.

use super::{
    jit::{Compiled, address, address_mut, isas},
    strips::{set, strip},
};
use symshape_compiler::codegen::{
    microkernel::{
        MicrokernelKey,
        op::{Body, Op, StreamStep, Ty},
        strip::{Phase, Stream, StripKey},
    },
    vector::VectorIsa,
};

/// Elements before the group in its buffer.
const BEFORE: usize = 3;

/// Elements behind the last one, which stay as they are.
const AFTER: usize = 5;

fn size(ty: Ty) -> usize {
    if matches!(ty, Ty::F32 | Ty::I32) { 4 } else { 1 }
}

/// A strip that copies planes to the channels of pixels. Streams of channels come first, the last channel
/// before the others.
fn key(channels: usize, ty: Ty) -> StripKey {
    let mut body = Body { stores_elsewhere: true, ..Body::default() };
    for channel in 0..channels as u32 {
        let load = body.push(Op::Load(channels as u32 + channel), ty).expect("supported");
        body.push(Op::Store(channels as u32 - 1 - channel, load), ty).expect("supported");
    }
    let steps = vec![StreamStep::Unit; 2 * channels];
    let mut key = strip(vec![Phase::Loop { extent: 0, body }], steps);
    for channel in 0..channels {
        key.streams[channel] =
            Stream { pointer: 0, offset: (size(ty) * (BEFORE + channels - 1 - channel)) as i32 };
    }
    key.pointers[0] = StreamStep::Group(channels as u8);
    key
}

fn check(isa: &dyn VectorIsa, fma: bool, channels: usize, ty: Ty, elements: usize) {
    let key = key(channels, ty);
    let size = size(ty);
    let element =
        |channel: usize, at: usize| (0..size).map(move |byte| (97 * channel + 31 * at + 7 * byte) as u8);
    let plane = |channel: usize| (0..elements).flat_map(|at| element(channel, at)).collect();
    let planes: Vec<Vec<u8>> = (0..channels).map(plane).collect();
    let mut pixels = vec![0xa5; size * (BEFORE + channels * elements + AFTER)];
    let mut expected = pixels.clone();
    for channel in 0..channels {
        for at in 0..elements {
            let place = size * (BEFORE + channels * at + channel);
            element(channel, at).zip(&mut expected[place..]).for_each(|(byte, to)| *to = byte);
        }
    }

    let mut args = vec![0; key.slots()];
    args[key.extent(0)] = elements as i64;
    set(&mut args, &key, 0, address_mut(&mut pixels), 0, size * channels);
    for (channel, plane) in planes.iter().enumerate() {
        set(&mut args, &key, (channels + channel) as u32, address(plane), 0, size);
    }
    Compiled::new(&MicrokernelKey::Strip(key), isa, fma).call(&mut args);
    assert!(pixels == expected, "{}: {channels} channels of {elements} elements", isa.name());
}

#[test]
fn channels_become_pixels() {
    for (isa, fma) in isas() {
        for channels in 2..=4 {
            for elements in (1..20).chain([31, 32, 33, 64, 79]) {
                check(&*isa, fma, channels, Ty::U8, elements);
                check(&*isa, fma, channels, Ty::I8, elements);
                check(&*isa, fma, channels, Ty::F32, elements);
                check(&*isa, fma, channels, Ty::I32, elements);
            }
        }
    }
}

#[test]
fn one_shuffle_moves_the_bytes_of_three_channels() {
    for (isa, _) in isas().into_iter().filter(|(isa, _)| isa.shape().byte_triples) {
        let text = MicrokernelKey::Strip(key(3, Ty::U8)).code(&*isa).to_string();
        // Of whole vectors, and of the first elements of the last one.
        assert_eq!(text.matches("StoreTriples").count(), 2, "{text}");
        assert!(!text.contains("StoreNarrow"), "{text}");
    }
}

#[test]
fn whole_vectors_of_words_are_interleaved() {
    for (isa, _) in isas().into_iter().filter(|(isa, _)| isa.shape().interleaving_stores) {
        let text = MicrokernelKey::Strip(key(3, Ty::F32)).code(&*isa).to_string();
        assert_eq!(text.matches("StoreInterleaved").count(), 1, "{text}");
        assert!(!text.contains("StoreLanes"), "{text}");
    }
}
