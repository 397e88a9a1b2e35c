//! The Qwen3.5 chat wrapping, as constants: the template itself is never run.

use crate::python::strip;

/// A system and a user turn, and the head of an assistant turn with thinking off. Both texts are stripped.
pub fn chat(system: Option<&str>, user: &str) -> String {
    let mut text = turns(system, user);
    text.push_str("\n</think>\n\n");
    text
}

/// The same with thinking on, which the model has begun: what the template of 4B and larger gives when it is not told.
pub fn chat_open(system: Option<&str>, user: &str) -> String {
    turns(system, user)
}

fn turns(system: Option<&str>, user: &str) -> String {
    let mut text = String::with_capacity(user.len() + 256);
    if let Some(system) = system {
        text.push_str("<|im_start|>system\n");
        text.push_str(strip(system));
        text.push_str("<|im_end|>\n");
    }
    text.push_str("<|im_start|>user\n");
    text.push_str(strip(user));
    text.push_str("<|im_end|>\n<|im_start|>assistant\n<think>\n");
    text
}

#[cfg(test)]
mod tests {
    use super::{chat, chat_open};

    #[test]
    fn texts_are_stripped_and_the_system_turn_is_optional() {
        let tail = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
        assert_eq!(chat(None, " \u{1c}u\n"), format!("<|im_start|>user\nu{tail}"));
        assert_eq!(
            chat_open(Some("s"), "u"),
            "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n<think>\n"
        );
        assert_eq!(
            chat(Some("\u{85}s "), "u"),
            format!("<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu{tail}")
        );
    }
}
