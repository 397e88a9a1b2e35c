//! Lists the files of the built-in model, if there is one, so that they can be included as bytes.

use std::{env, error::Error, fmt::Write as _, fs, path::Path};

const FILES: [&str; 5] = [
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "decision_config.json",
];

fn main() -> Result<(), Box<dyn Error>> {
    let models = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../../deploy/models");
    let folder = models.join("deltagate-mini");
    println!("cargo::rerun-if-changed=build.rs");
    let missing: Vec<&str> = FILES
        .into_iter()
        .filter(|name| !folder.join(name).is_file())
        .collect();
    let code = if missing.is_empty() {
        let mut code = String::from("static FILES: Option<&[EmbeddedFile]> = Some(&[\n");
        for name in FILES {
            let path = fs::canonicalize(folder.join(name))?;
            println!("cargo::rerun-if-changed={}", path.display());
            writeln!(
                code,
                "    EmbeddedFile {{ name: {name:?}, bytes: include_bytes!({path:?}) }},"
            )?;
        }
        code.push_str("]);\n");
        code
    } else {
        println!(
            "cargo::warning=no embedded model: {} has no {}",
            folder.display(),
            missing.join(", ")
        );
        // A path that does not exist would run this script at every build.
        let watched = [&folder, &models].into_iter().find(|path| path.is_dir());
        if let Some(watched) = watched {
            println!("cargo::rerun-if-changed={}", watched.display());
        }
        String::from("static FILES: Option<&[EmbeddedFile]> = None;\n")
    };
    fs::write(Path::new(&env::var("OUT_DIR")?).join("embedded_files.rs"), code)?;
    Ok(())
}
