//! Compiles the .proto files with protox (no protoc binary) into tonic code and a descriptor set for reflection.

use std::{env, fs, path::PathBuf};

use prost::Message;

const PROTOS: [&str; 4] = [
    "deltagate/v1/classifier.proto",
    "deltagate/v1/executor.proto",
    "deltagate/v1/capability.proto",
    "deltagate/v1/policy.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let set = protox::compile(PROTOS, ["."])?;
    // compile_fds ignores file_descriptor_set_path, so the set that reflection serves is written here.
    fs::write(out.join("deltagate.bin"), set.encode_to_vec())?;
    tonic_prost_build::configure().bytes(".").compile_fds(set)?;
    println!("cargo:rerun-if-changed=deltagate");
    Ok(())
}
