//! Domains of operators.

/// Whether two domains are equal. The default domain has two names.
pub(crate) fn same_domain(a: &str, b: &str) -> bool {
    normal(a) == normal(b)
}

fn normal(domain: &str) -> &str {
    if domain == "ai.onnx" { "" } else { domain }
}
