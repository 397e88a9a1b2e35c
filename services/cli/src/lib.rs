//! The deltagate command
