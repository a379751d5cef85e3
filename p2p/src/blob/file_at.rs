//! Reads and writes at a place of a file.
//!
//! Unix has them. Windows moves the file's cursor with each, which nothing here depends on.

#[cfg(unix)]
pub use std::os::unix::fs::FileExt as FileAt;
#[cfg(windows)]
pub use windows::FileAt;

#[cfg(windows)]
mod windows {
    use std::{fs::File, io, os::windows::fs::FileExt};

    /// As Unix's trait.
    pub trait FileAt {
        /// Reads as many bytes as `into` has room for, from `at` on.
        ///
        /// # Errors
        /// Those of the system; fewer bytes.
        fn read_exact_at(&self, into: &mut [u8], at: u64) -> io::Result<()>;
        /// Writes all of `bytes` from `at` on.
        ///
        /// # Errors
        /// Those of the system.
        fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()>;
    }

    impl FileAt for File {
        fn read_exact_at(&self, mut into: &mut [u8], mut at: u64) -> io::Result<()> {
            while !into.is_empty() {
                match self.seek_read(into, at)? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    n => (into, at) = (&mut into[n..], at + n as u64),
                }
            }
            Ok(())
        }

        fn write_all_at(&self, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
            while !bytes.is_empty() {
                match self.seek_write(bytes, at)? {
                    0 => return Err(io::ErrorKind::WriteZero.into()),
                    n => (bytes, at) = (&bytes[n..], at + n as u64),
                }
            }
            Ok(())
        }
    }
}
