//! The ends of a model: what a token becomes in front of the first layer, and the weights behind the last one.

use std::sync::Arc;

use super::{
    buffers::CpuBuffers,
    load::{Linear, Loader},
    network::{norm, product},
    weights::{NormWeights, TokenWeights},
};
use crate::{
    Result,
    gguf::{Gguf, Tensor},
    kernels::{Activations, Cpu, Matrix},
    models::{self, Blueprint, Norm, Ranks},
};

/// Rows of the embedding table read between giving its pages in the file back.
const MANY_ROWS: usize = 16;

/// The embedding table, read row by row from the file, and what is added to its rows.
pub(super) struct Embedding {
    pub gguf: Arc<Gguf>,
    /// What makes the rows that layers read, where they read the token itself.
    pub token: Option<TokenWeights>,
    /// A row for every position, `[context][hidden]`.
    positions: Option<Vec<f32>>,
    /// A row for each text of a pair, `[texts][hidden]`.
    types: Option<Vec<f32>>,
    norm: Option<NormWeights>,
}

impl Embedding {
    const NAME: &str = "token_embd.weight";

    pub fn load(loader: &Loader<'_>, gguf: &Arc<Gguf>) -> Result<Self> {
        let models::Embedding { positions, types, normed, .. } = loader.blueprint.embedding;
        Ok(Self {
            gguf: gguf.clone(),
            token: loader.token()?,
            positions: positions.then(|| loader.values("position_embd.weight")).transpose()?,
            types: types.map(|_| loader.values("token_types.weight")).transpose()?,
            norm: normed.then(|| loader.norm("token_embd_norm")).transpose()?,
        })
    }

    pub fn table(&self) -> Result<Tensor<'_>> {
        self.gguf.require(Self::NAME)
    }

    /// The rows of `tokens`, the first of them at position `start`, without the norm behind them.
    pub fn rows(
        &self,
        cpu: &Cpu,
        blueprint: &Blueprint,
        (tokens, start): (&[u32], usize),
        x: &mut [f32],
    ) -> Result<()> {
        let (table, hidden) = (self.table()?, blueprint.hidden);
        for (row, (&id, x)) in tokens.iter().zip(x.chunks_exact_mut(hidden)).enumerate() {
            (table.format.dequantize)(table.row(id as usize), x);
            // Each row read maps a neighborhood of the file; a long prompt would keep a good part of the table.
            if row % MANY_ROWS == MANY_ROWS - 1 {
                self.gguf.forget(Self::NAME);
            }
        }
        if blueprint.embedding.scale != 1.0 {
            cpu.scale(x, blueprint.embedding.scale);
        }
        if let (Some(types), Some(separator)) = (&self.types, blueprint.embedding.types) {
            let rows = models::Embedding::types_of(separator, tokens);
            rows.zip(x.chunks_exact_mut(hidden))
                .for_each(|(at, x)| cpu.add(x, &types[at * hidden..(at + 1) * hidden]));
        }
        if let Some(positions) = &self.positions {
            cpu.add(x, &positions[start * hidden..(start + tokens.len()) * hidden]);
        }
        Ok(())
    }

    /// The norm over the first `rows` rows of `ws.x`, where there is one.
    pub fn norm(&self, cpu: &Cpu, spec: Norm, ws: &mut CpuBuffers, rows: usize) {
        if let Some(weights) = &self.norm {
            norm_sums(cpu, spec, weights, ws, rows);
        }
    }
}

/// A norm of the residual rows themselves.
pub(super) fn norm_sums(cpu: &Cpu, spec: Norm, weights: &NormWeights, ws: &mut CpuBuffers, rows: usize) {
    let size = rows * ws.sizes.hidden;
    norm(cpu, spec, weights, &ws.x[..size], &mut ws.h[..size]);
    ws.x[..size].copy_from_slice(&ws.h[..size]);
}

/// What follows the last layer.
pub(super) struct HeadWeights {
    /// None in some encoders.
    pub norm: Option<NormWeights>,
    /// None in encoders.
    pub matrix: Option<Arc<Matrix>>,
    pub bias: Option<Vec<f32>>,
    pub rank: Option<RankWeights>,
    /// What each stream of the residual rows behind the first goes through before they become one.
    pub streams: Vec<Linear>,
}

impl HeadWeights {
    pub fn load(loader: &Loader<'_>) -> Result<Self> {
        let head = loader.blueprint.head;
        let norm = match head.logits {
            true => Some(loader.norm(head.norm)?),
            false => loader.norm_opt(head.norm)?,
        };
        Ok(Self {
            norm,
            matrix: head.logits.then(|| loader.head().map(Arc::new)).transpose()?,
            bias: loader.vector("output.bias"),
            rank: head.rank.map(|ranks| RankWeights::load(loader, ranks)).transpose()?,
            streams: loader.streams_behind_the_first("altup_unembd_proj")?,
        })
    }

    /// The same matrix behind another norm.
    pub fn shared(&self) -> Self {
        let (matrix, bias) = (self.matrix.clone(), self.bias.clone());
        Self { norm: None, matrix, bias, rank: None, streams: Vec::new() }
    }

    pub fn resident_bytes(&self) -> usize {
        self.matrix.as_ref().map_or(0, |matrix| matrix.resident_bytes())
            + self.streams.iter().map(Linear::resident_bytes).sum::<usize>()
            + self.rank.as_ref().map_or(0, RankWeights::resident_bytes)
    }
}

/// What makes a score of the hidden state that stands for a text.
pub(super) struct RankWeights {
    ranks: Ranks,
    inner: Option<Linear>,
    norm: Option<NormWeights>,
    out: Linear,
}

impl RankWeights {
    fn load(loader: &Loader<'_>, ranks: Ranks) -> Result<Self> {
        let inner = loader.gguf.info("cls.weight").map(|_| loader.linear("cls")).transpose()?;
        Ok(Self { ranks, inner, norm: loader.norm_opt("cls.norm")?, out: loader.linear("cls.output")? })
    }

    fn resident_bytes(&self) -> usize {
        self.inner.as_ref().map_or(0, Linear::resident_bytes) + self.out.resident_bytes()
    }

    /// The score of `state`, one row.
    pub fn score(&self, cpu: &Cpu, spec: Norm, state: &[f32]) -> f32 {
        let mut scratch = Activations::new();
        let mut x = state.to_vec();
        if let Some(inner) = &self.inner {
            product(cpu, &mut scratch, state, 1, [(inner, &mut x)]);
            match self.ranks {
                Ranks::Choice => {}
                Ranks::Tanh => cpu.softcap(&mut x, 1.0),
                Ranks::Gelu => cpu.gelu(&mut x),
            }
        }
        if let Some(weights) = &self.norm {
            let from = x.clone();
            norm(cpu, spec, weights, &from, &mut x);
        }
        let mut scores = vec![0.0; self.out.matrix.rows()];
        product(cpu, &mut scratch, &x, 1, [(&self.out, &mut scores)]);
        match (self.ranks, &scores[..]) {
            (Ranks::Choice, [yes, no]) => yes - no,
            _ => scores[0],
        }
    }
}
