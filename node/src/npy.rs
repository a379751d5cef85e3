//! Writes f32 vectors as NumPy's `.npy`, format version 1.0 (NEP 1).

use std::{
    fs::File,
    io::{BufWriter, Result, Write},
};

/// Writes `values` as a one-dimensional little-endian f32 array.
pub fn write(file: File, values: &[f32]) -> Result<()> {
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({},), }}", values.len());
    // The magic (10 bytes), the header and its newline end on a multiple of 64.
    let padding = 63 - (10 + header.len()) % 64;
    header.extend(std::iter::repeat_n(' ', padding));
    header.push('\n');
    let mut file = BufWriter::new(file);
    file.write_all(b"\x93NUMPY\x01\x00")?;
    file.write_all(&(header.len() as u16).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    for value in values {
        file.write_all(&value.to_le_bytes())?;
    }
    file.flush()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_data_starts_on_a_multiple_of_64() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.npy");
        for len in [0, 1, 9, 10, 99_999] {
            super::write(std::fs::File::create(&path).unwrap(), &vec![1.5; len]).unwrap();
            let bytes = std::fs::read(&path).unwrap();
            let header = u16::from_le_bytes([bytes[8], bytes[9]]) as usize;
            assert_eq!((10 + header) % 64, 0);
            assert_eq!(bytes[9 + header], b'\n');
            assert_eq!(bytes.len(), 10 + header + 4 * len);
        }
    }
}
