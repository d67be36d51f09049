//! Names of partitions: the layers that they run.

use crate::kernel::Kernel;

/// The name of a partition that runs these kernels: that of its only kernel, or its first and last layer. Layers of one
/// block, whose names have a common path, are named after the path. `largest` is the name of the largest kernel, for
/// kernels without layers.
pub(super) fn of(kernels: &[Kernel], largest: &str) -> String {
    if let [kernel] = kernels {
        return kernel.name.clone();
    }
    let layers: Vec<&str> = kernels.iter().flat_map(|kernel| layers(&kernel.name)).collect();
    let (Some(first), Some(last)) = (layers.first(), layers.last()) else { return largest.to_string() };
    if first == last {
        return format!("`{first}`");
    }

    let path = common_path(first, last);
    if path.trim_matches('/').is_empty() {
        return format!("`{first}` to `{last}`");
    }
    format!("`{}`: `{}` to `{}`", path.trim_end_matches('/'), &first[path.len()..], &last[path.len()..])
}

/// The names of nodes in the name of a kernel, which are in backticks.
fn layers(kernel: &str) -> impl Iterator<Item = &str> {
    kernel.split('`').skip(1).step_by(2)
}

/// The longest common beginning that ends with a slash.
fn common_path<'a>(a: &'a str, b: &str) -> &'a str {
    let mut end = 0;
    for (at, _) in a.match_indices('/') {
        if b.get(..=at) == Some(&a[..=at]) {
            end = at + 1;
        }
    }
    &a[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> String {
        let kernel = |name: &&str| Kernel { name: name.to_string(), ..Kernel::default() };
        of(&names.iter().map(kernel).collect::<Vec<_>>(), "largest")
    }

    #[test]
    fn partitions_are_named_after_their_layers() {
        assert_eq!(named(&["contraction node `head`"]), "contraction node `head`");
        assert_eq!(named(&["map node `a`, map node of `b`", "contraction node `c`"]), "`a` to `c`");
        assert_eq!(named(&["fill node `a`", "map node `a`"]), "`a`");
        assert_eq!(named(&["map", "contraction"]), "largest");
    }

    #[test]
    fn layers_of_one_block_are_named_after_it() {
        let names = ["contraction node `/layer.0/query/MatMul`", "rows node `/layer.0/norm/Add`"];
        assert_eq!(named(&names), "`/layer.0`: `query/MatMul` to `norm/Add`");
        assert_eq!(named(&["map node `/a/x`", "map node `/b/x`"]), "`/a/x` to `/b/x`");
        assert_eq!(named(&["map node `/ä/x`", "map node `/ä/ö`"]), "`/ä`: `x` to `ö`");
    }
}
