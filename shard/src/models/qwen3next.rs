//! `qwen3next`: Qwen 3 Next and Qwen 3 Coder Next. Delta nets and gated attention (see [`super::delta`]) with experts in
//! every layer and a shared expert behind a sigmoid gate. Consecutive value heads share a key head, and one matrix holds beta
//! and alpha. Files of the first converter, whose `ssm_in` fuses what is separate today, are refused by the tensor they lack.

use super::{
    Blueprint,
    delta::{self, Stored},
    reader::Reader,
};
use crate::Result;

pub(super) fn read(reader: &Reader<'_>) -> Result<Blueprint> {
    let sizes = reader.sizes()?;
    delta::read(reader, &sizes, Stored { tiled: false, fused: true }, delta::experts(reader, &sizes)?)
}
