//! A hash of a model with state: a state that another model left behind is refused.

use crate::graph::{Graph, Op, StatePair};

/// The number of places of a constant that are hashed. Two models differ in almost all elements of some weight.
const PLACES: usize = 64;

/// A hash of the ports, the state and samples of the weights.
pub(super) fn id(graph: &Graph, pairs: &[StatePair]) -> u64 {
    let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
    for (name, value) in graph.inputs.iter().chain(&graph.outputs) {
        hash.bytes(format!("{name}: {}{:?};", graph.dtype(*value), graph.shape(*value)).as_bytes());
    }
    for symbol in &graph.symbols {
        let declared = graph.facts.declaration(symbol).map(ToString::to_string);
        hash.bytes(format!("{symbol} {declared:?};").as_bytes());
    }
    hash.bytes(format!("{pairs:?}").as_bytes());

    for node in graph.nodes.values() {
        let Op::Const(tensor) = &node.op else { continue };
        let bytes = tensor.stored();
        hash.bytes(&bytes.len().to_le_bytes());
        for chunk in bytes.chunks(bytes.len().div_ceil(PLACES).max(8)) {
            hash.bytes(&chunk[..chunk.len().min(8)]);
        }
    }
    hash.0
}

/// The hash function FNV-1a.
struct Fnv(u64);

impl Fnv {
    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
