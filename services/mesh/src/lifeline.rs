//! A child's view of its parent: when stdin closes, the parent is gone or wants the child to drain.

use std::io::Read;

use tokio_util::sync::CancellationToken;

/// Cancelled when this process's stdin ends. Call it once, and only in a process whose stdin is a supervisor's pipe.
///
/// A thread of its own reads, because a blocking read of stdin would hold a tokio runtime's shutdown up.
pub fn watch() -> CancellationToken {
    let token = CancellationToken::new();
    let gone = token.clone();
    let reader = std::thread::Builder::new()
        .name("lifeline".to_owned())
        .spawn(move || {
            let mut buffer = [0u8; 64];
            let mut stdin = std::io::stdin();
            loop {
                match stdin.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
            gone.cancel();
        });
    if reader.is_err() {
        // Without the thread nobody would notice the parent's death: fail closed.
        token.cancel();
    }
    token
}
