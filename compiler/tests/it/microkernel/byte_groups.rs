//! Bytes of neighbouring streams that are stored together.

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

/// The first byte of the group in its buffer.
const BEFORE: usize = 3;

/// Bytes behind the last element, which stay as they are.
const AFTER: usize = 5;

/// A strip that copies planes of bytes to the channels of pixels. Streams of channels come first, the last channel
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
        key.streams[channel] = Stream { pointer: 0, offset: (BEFORE + channels - 1 - channel) as i32 };
    }
    key.pointers[0] = StreamStep::Group(channels as u8);
    key
}

fn check(isa: &dyn VectorIsa, fma: bool, channels: usize, ty: Ty, elements: usize) {
    let key = key(channels, ty);
    let byte = |channel: usize, at: usize| (97 * channel + 31 * at) as u8;
    let planes: Vec<Vec<u8>> =
        (0..channels).map(|channel| (0..elements).map(|at| byte(channel, at)).collect()).collect();
    let mut pixels = vec![0xa5; BEFORE + channels * elements + AFTER];
    let mut expected = pixels.clone();
    for (channel, plane) in planes.iter().enumerate() {
        for (at, value) in plane.iter().enumerate() {
            expected[BEFORE + channels * at + channel] = *value;
        }
    }

    let mut args = vec![0; key.slots()];
    args[key.extent(0)] = elements as i64;
    set(&mut args, &key, 0, address_mut(&mut pixels), 0, channels);
    for (channel, plane) in planes.iter().enumerate() {
        set(&mut args, &key, (channels + channel) as u32, address(plane), 0, 1);
    }
    Compiled::new(&MicrokernelKey::Strip(key), isa, fma).call(&mut args);
    assert!(pixels == expected, "{}: {channels} channels of {elements} elements", isa.name());
}

#[test]
fn channels_of_bytes_become_pixels() {
    for (isa, fma) in isas() {
        for channels in 2..=4 {
            for elements in (1..20).chain([31, 32, 33, 64, 79]) {
                check(&*isa, fma, channels, Ty::U8, elements);
                check(&*isa, fma, channels, Ty::I8, elements);
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
