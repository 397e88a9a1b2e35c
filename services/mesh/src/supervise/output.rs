//! A child's output, line by line, with its name in front.

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};

/// A line longer than this is broken, so that a child that writes no line ends cannot fill the memory.
const LONGEST_LINE: u64 = 64 * 1024;

/// Copies lines until the child closes its end.
pub(super) async fn forward(from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, prefix: String) {
    let mut reader = BufReader::new(from);
    let mut line = Vec::new();
    loop {
        line.clear();
        line.extend_from_slice(prefix.as_bytes());
        match (&mut reader)
            .take(LONGEST_LINE)
            .read_until(b'\n', &mut line)
            .await
        {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        // One write a line, so that lines of several children do not mix. A closed terminal must not stop the
        // reading, or the child would block on a full pipe.
        let _ = to.write_all(&line).await;
        let _ = to.flush().await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[tokio::test]
    async fn every_line_gets_the_prefix_and_long_ones_are_broken() {
        let long = "x".repeat(LONGEST_LINE as usize + 5);
        let input = format!("one\ntwo\n{long}\nlast");
        let (writer, mut reader) = tokio::io::duplex(1 << 20);
        forward(input.as_bytes(), writer, "svc | ".to_owned()).await;
        let mut out = String::new();
        reader.read_to_string(&mut out).await.unwrap();
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines.len(), 5);
        assert!(lines.iter().all(|l| l.starts_with("svc | ")));
        assert_eq!(
            (lines[0], lines[1], lines[4]),
            ("svc | one", "svc | two", "svc | last")
        );
        assert_eq!(lines[3], "svc | xxxxx");
    }
}
