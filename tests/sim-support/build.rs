//! Exists for `OUT_DIR`, by which libraries built in the same target folder are found.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
}
