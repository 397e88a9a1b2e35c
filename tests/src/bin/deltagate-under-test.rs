//! The deltagate command, built beside the end-to-end tests so that they start what was just compiled.

fn main() -> std::process::ExitCode {
    deltagate::main()
}
