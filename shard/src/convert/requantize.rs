//! A GGUF whose matrices are written again in another format; all else is copied as it stands.
//!
//! Rounding what is rounded already adds up: a file of floats gives the better model. The head keeps at least q6_k, vectors,
//! routers and small matrices their format.

use std::{
    fs::File,
    io::{BufWriter, Seek, Write},
};

use super::{
    Converted, Options, conveyor,
    conveyor::Slice,
    formats::{
        Wanted, bytes_of, check_importance, check_rules, choose, count, encode, file_type, is_head, is_matrix,
    },
    runnable,
};
use crate::{
    Error, Result,
    gguf::{Gguf, Tensor, Writer},
    quant::Format,
};

/// What a written file says of its main format.
const FILE_TYPE: &str = "general.file_type";
/// What a file of several parts says of them.
const PARTS: &str = "split.";

/// Writes `source` to `output`, which must be empty and readable; `progress(done, total)` counts bytes of tensor data.
///
/// # Errors
/// [`Error::Unsupported`] for tensors of unknown formats; [`Error::Invalid`] for a rule that is about no matrix; those of the system.
pub fn requantize(
    source: &Gguf,
    output: &File,
    options: &Options,
    progress: &dyn Fn(u64, u64),
) -> Result<Converted> {
    let metadata = source.metadata();
    let architecture = metadata.architecture()?.to_owned();
    let tensors: Vec<Tensor<'_>> =
        source.tensors().iter().map(|info| source.require(&info.name)).collect::<Result<_>>()?;
    let matrix = |tensor: &Tensor<'_>| is_matrix(&tensor.info.name, tensor.info.dims.len());
    let matrices = tensors.iter().filter(|tensor| matrix(tensor)).map(|tensor| &*tensor.info.name);
    check_rules(&options.rules, matrices.clone())?;
    let tied = source.info("output.weight").is_none();
    let format_of = |tensor: &Tensor<'_>| {
        let (name, cols) = (&*tensor.info.name, tensor.cols());
        match matrix(tensor) {
            true => choose(&Wanted { name, cols, vector: false, head: is_head(name, tied) }, options),
            false if tensor.scale().is_some() => {
                Err(Error::unsupported(format!("tensor {name} in {}", tensor.format.name)))
            }
            false => Ok(tensor.format),
        }
    };
    let formats: Vec<&'static Format> = tensors.iter().map(format_of).collect::<Result<_>>()?;
    check_importance(options.importance.as_ref(), matrices, &formats)?;

    let mut writer = Writer::new();
    for (key, value) in metadata.iter() {
        if key == "general.alignment" {
            let alignment = metadata.u64(key).and_then(|alignment| u32::try_from(alignment).ok());
            writer.set_alignment(alignment.ok_or_else(|| Error::malformed(key, "it is no number"))?);
        } else if key != FILE_TYPE && !key.starts_with(PARTS) {
            writer.add_value(key, value);
        }
    }
    writer.add_u32(FILE_TYPE, file_type(options.format));
    for (tensor, format) in tensors.iter().zip(&formats) {
        writer.add_tensor_info(&tensor.info.name, &tensor.info.dims, format);
    }
    let mut out = writer.start(BufWriter::with_capacity(1 << 20, output))?;

    let slices: Vec<Slice> = tensors
        .iter()
        .enumerate()
        .flat_map(|(at, tensor)| Slice::of(at, tensor.rows(), tensor.cols(), 1))
        .collect();
    let total = tensors.iter().zip(&formats).map(|(t, f)| bytes_of(f, t.rows() * t.cols()) as u64).sum();
    let make = |slice: &Slice| -> Result<Vec<u8>> {
        let (tensor, format) = (&tensors[slice.tensor], formats[slice.tensor]);
        let row = tensor.bytes.len() / tensor.rows();
        let bytes = &tensor.bytes[slice.rows.start * row..slice.rows.end * row];
        if std::ptr::eq(format, tensor.format) {
            return Ok(bytes.to_vec());
        }
        let mut weights = vec![0.0; slice.rows.len() * tensor.cols()];
        (tensor.format.dequantize)(bytes, &mut weights);
        if let Some(scale) = tensor.scale() {
            weights.iter_mut().for_each(|weight| *weight *= scale);
        }
        let name = (&*tensor.info.name, tensor.cols());
        encode(format, name, &weights, (slice.rows.start, tensor.rows()), options.importance.as_ref())
    };
    conveyor::run(&slices, options.threads, &make, &mut out, &|done| progress(done, total))?;
    let mut out = out.finish()?;
    out.flush().map_err(|error| Error::io("", error))?;
    let bytes = out.get_mut().stream_position().map_err(|error| Error::io("", error))?;
    runnable(output, bytes)?;
    Ok(Converted { architecture, tensors: tensors.len(), bytes, formats: count(&formats) })
}
