//! The deltagate command.

fn main() -> std::process::ExitCode {
    deltagate::main()
}
