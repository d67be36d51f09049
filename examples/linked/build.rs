//! Links the static library that `symc` wrote.

fn main() {
    let root = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo:rustc-link-search=native={root}/native");
    println!("cargo:rustc-link-lib=static=block");
    println!("cargo:rerun-if-changed={root}/native/libblock.a");
}
