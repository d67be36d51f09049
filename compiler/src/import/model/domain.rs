//! Domains of operators.

/// Two domains are the same; the default one has two names.
pub(crate) fn same_domain(a: &str, b: &str) -> bool {
    let normal = |domain: &str| if domain == "ai.onnx" { String::new() } else { domain.to_string() };
    normal(a) == normal(b)
}
