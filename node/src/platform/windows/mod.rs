//! As Windows has it.

pub mod control_socket;
pub mod files;
pub mod handed_files;
pub mod output;
pub mod streams;
