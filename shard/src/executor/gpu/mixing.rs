//! The dispatches of what mixes positions. The row that goes in is normed and rounded, and what they end with is the row that the
//! output matrix reads, rounded.

use super::{
    matrices::{NormPart, Part, TILE},
    mixers::{
        DeltaColumns, DeltaParts, LatentParts, Mamba2Parts, MixerParts, NarrowGates, ShortConvParts,
        SoftmaxParts,
    },
    source::{Attending, Convolution, Kernel},
    steps::{Binder, Groups},
};
use crate::{
    kernels::Pairing,
    models::{BareNorm, Blueprint},
};

/// The number of an arena, and its buffer.
type Place<'a> = (u32, &'a wgpu::Buffer);

impl<'a> Binder<'a> {
    /// What mixes the positions of a layer, whose pages are in the arenas from number `first` on; `norm` is the one of what comes
    /// out.
    pub fn mixer(
        &mut self,
        b: &Blueprint,
        parts: &MixerParts,
        (first, buffers): (u32, &[wgpu::Buffer]),
        norm: Option<&NormPart>,
    ) {
        let place = (first, &buffers[0]);
        match parts {
            MixerParts::Softmax(parts) => {
                self.store(b, parts, place);
                self.look_back(b, parts, place, norm);
            }
            MixerParts::Beside(parts) => {
                let (softmax, mamba, out) = &**parts;
                // Both read the rows as they went in, which what follows the state space replaces.
                self.store(b, softmax, place);
                self.mamba2(b, mamba, (first + 1, &buffers[1]));
                self.products("output", out, (&self.scratch.made, b.hidden), None);
                self.look_back(b, softmax, place, norm);
            }
            MixerParts::Latent(parts) => self.latent(b, parts, place),
            MixerParts::Delta(parts) => self.delta(b, parts, place),
            MixerParts::Mamba2(parts) => self.mamba2(b, parts, place),
            MixerParts::ShortConv(parts) => self.short_conv(parts, place),
        }
    }

    /// Queries, and keys and values in their pages.
    fn store(&mut self, b: &Blueprint, parts: &SoftmaxParts, (held, pages): Place<'_>) {
        let SoftmaxParts { spec, qkv, same, head_norms, has_head_norms, wide_norms, .. } = parts;
        let [heads, kv_heads, dim] = [b.heads, spec.kv.kv_heads, spec.kv.head_dim].map(|size| size as u32);
        let scratch = self.scratch;
        let [gates, same] = [spec.gated, *same].map(u32::from);
        let stride = (heads + heads * gates + (2 - same) * kv_heads) * dim;
        self.products("query, key, value", qkv, (&scratch.mixer.projected, stride as usize), None);
        let (turning, apart, angles) = self.rotation(b, spec.rope);
        let eps = b.norm.eps.to_bits();
        if *wide_norms {
            let params = [heads * dim, kv_heads * dim, stride, eps];
            let buffers = [head_norms, &scratch.mixer.projected];
            self.one("norms of all heads", Kernel::WideNorms, &params, &buffers, Groups::Each(2));
        }
        let bare = u32::from(spec.bare_norm == Some(BareNorm::Values));
        let [q_norm, k_norm] = has_head_norms.map(|has| u32::from(has && !wide_norms));
        let params = [heads, kv_heads, dim, held, turning, apart, q_norm, k_norm, eps, gates, same, bare];
        let buffers = [&scratch.mixer.projected, angles, head_norms, &scratch.mixer.queries, pages];
        let groups = Groups::Each(heads + 2 * kv_heads);
        self.one("rotation and storing", Kernel::Heads, &params, &buffers, groups);
    }

    /// Softmax attention of the queries.
    fn look_back(
        &mut self,
        b: &Blueprint,
        parts: &SoftmaxParts,
        (held, pages): Place<'_>,
        norm: Option<&NormPart>,
    ) {
        let SoftmaxParts { spec, sinks, .. } = parts;
        let [heads, kv_heads, dim] = [b.heads, spec.kv.kv_heads, spec.kv.head_dim].map(|size| size as u32);
        let (scratch, q_width) = (self.scratch, b.heads * spec.kv.head_dim);
        let attending = Attending {
            heads: b.heads,
            shape: spec.kv,
            arena: held,
            words: kv_heads * dim,
            window: spec.window,
            scale: spec.scale,
            softcap: spec.softcap,
            has_sinks: sinks.is_some(),
        };
        self.attend(&attending, pages, sinks.as_ref());
        if spec.gated {
            let params = [q_width as u32, 2 * (heads + kv_heads) * dim, dim];
            return self.made(
                "gate",
                Kernel::Sigmoid,
                &params,
                (&scratch.mixer.attended, &scratch.mixer.projected),
                Groups::Rows,
            );
        }
        let norm = norm.map(|norm| (norm, b.norm.eps));
        let kernel = norm.map_or(Kernel::Copy, |_| Kernel::Norm { center: false });
        self.row(kernel, (&scratch.mixer.attended, q_width), norm, None);
    }

    /// Attention of the queries over `pages`.
    fn attend(&mut self, attending: &Attending, pages: &wgpu::Buffer, sinks: Option<&wgpu::Buffer>) {
        let (mixer, sinks) = (&self.scratch.mixer, sinks.unwrap_or(&self.scratch.nothing));
        let buffers = [&mixer.queries, pages, sinks, &mixer.attended];
        let groups = Groups::Each(attending.heads as u32);
        self.one("attention", attending.kernel(), &attending.params(), &buffers, groups);
    }

    /// How many values of a head turn in the rotation `rope`, whether pairs stand apart, and the angles.
    fn rotation(&self, b: &Blueprint, rope: Option<usize>) -> (u32, u32, &'a wgpu::Buffer) {
        match rope {
            Some(rope) => {
                let apart = b.ropes[rope].pairing == Pairing::Halves;
                (b.ropes[rope].dims as u32, u32::from(apart), &self.scratch.angles[rope])
            }
            None => (0, 0, &self.scratch.nothing),
        }
    }

    fn latent(&mut self, b: &Blueprint, parts: &LatentParts, (held, pages): Place<'_>) {
        let LatentParts { spec, narrow, q, row, row_norm, keys, values } = parts;
        let scratch = self.scratch;
        let sizes = [b.heads, spec.query(), spec.plain, spec.rotated, spec.rank, spec.value];
        let [heads, query, plain, rotated, rank, value] = sizes.map(|size| size as u32);
        let dim = rotated + rank;
        let raw = &scratch.mixer.inputs;
        let narrow_width = narrow.as_ref().map_or(0, |(_, width)| *width as u32);
        let stride = narrow_width + dim;
        self.products("latent", row, (&scratch.mixer.projected, stride as usize), None);
        if let Some((norm, width)) = narrow {
            let params = [*width as u32, spec.eps.to_bits(), 0, stride];
            let kernel = Kernel::Norm { center: false };
            self.made("norm", kernel, &params, (&scratch.mixer.projected, norm), Groups::Rows);
        }
        self.products("query", q, (raw, b.heads * spec.query()), None);
        let (turning, apart, angles) = self.rotation(b, spec.rope);
        let eps = spec.eps.to_bits();
        let params = [heads, query, plain, rotated, rank, held, turning, apart, eps, stride, narrow_width];
        let buffers = [raw, &scratch.mixer.projected, angles, row_norm, &scratch.mixer.queries, pages];
        let groups = Groups::Each(heads + 1);
        self.one("rotation and storing", Kernel::LatentHeads, &params, &buffers, groups);
        self.copied((raw, plain), query, heads);
        self.heads("absorbed query", keys, (&scratch.mixer.queries, dim, rotated), heads);
        let attending = Attending {
            heads: b.heads,
            shape: spec.shape(),
            arena: held,
            words: dim / 2,
            window: None,
            scale: spec.scale,
            softcap: None,
            has_sinks: false,
        };
        self.attend(&attending, pages, None);
        self.copied((&scratch.mixer.attended, rank), rank, heads);
        self.heads("value", values, (&scratch.mixer.mixed, value, 0), heads);
        self.row(Kernel::Copy, (&scratch.mixer.mixed, b.heads * spec.value), None, None);
    }

    /// The first `cols` of every `stride` values of rows, for each of `visits` of them, rounded.
    fn copied(&mut self, (from, cols): (&wgpu::Buffer, u32), stride: u32, visits: u32) {
        let nothing = &self.scratch.nothing;
        let params = [cols, stride, 0];
        self.made("rounding", Kernel::Copy, &params, (from, nothing), Groups::EachVisit(visits));
    }

    /// Each head's row times the head's matrix, into `out`, whose rows of a head are `stride` wide, from column `first` on.
    fn heads(
        &mut self,
        name: &'static str,
        part: &Part,
        (out, stride, first): (&wgpu::Buffer, u32, u32),
        heads: u32,
    ) {
        let [rows, cols, words] = [part.rows, part.cols, part.row_words].map(|size| size as u32);
        let words_of_one = rows.next_multiple_of(TILE as u32) * words;
        let params = [rows, cols, words, stride, first, 0, 0, 0, words_of_one, heads];
        let groups = Groups::Visits(rows.div_ceil(64), heads);
        let nothing = &self.scratch.nothing;
        self.matrix((name, part.bytes), part, &params, (nothing, out), groups);
    }

    fn delta(&mut self, b: &Blueprint, parts: &DeltaParts, (held, vectors): Place<'_>) {
        let DeltaParts { shape, projected, narrow, constants, norm } = parts;
        let (scratch, columns) = (self.scratch, DeltaColumns::of(shape));
        let rows = (&scratch.mixer.projected, columns.stride);
        self.products("query, key, value, gates", projected, rows, None);
        if let Some(NarrowGates { inner, width, outer }) = narrow {
            for (parts, to) in inner.iter().zip(&scratch.narrow) {
                self.products("narrow gates", parts, (to, *width), None);
            }
            for (parts, from) in outer.iter().zip(&scratch.narrow) {
                self.row(Kernel::Copy, (from, *width), None, None);
                self.products("gates", parts, rows, None);
            }
        }
        let sizes = [shape.channels(), columns.stride, shape.kernel, shape.matrices_len(), shape.state_len()];
        let [channels, stride, taps, matrices, values] = sizes.map(|size| size as u32);
        let sizes = [shape.key_heads, shape.key_dim, shape.value_heads, shape.value_dim, shape.decays()];
        let [key_heads, key_dim, heads, dim, decays] = sizes.map(|size| size as u32);
        let scale = (1.0 / (shape.key_dim as f32).sqrt()).to_bits();
        let [strengths_at, decays_at] = [columns.strengths, columns.decays].map(|at| at as u32);
        let params = [
            channels,
            stride,
            taps,
            held,
            matrices,
            values,
            key_heads,
            key_dim,
            scale,
            heads,
            decays,
            strengths_at,
            decays_at,
        ];
        let buffers =
            [&scratch.mixer.projected, constants, vectors, &scratch.mixer.inputs, &scratch.mixer.gates];
        let kernel = Kernel::Convolve(Convolution::Delta);
        self.one("convolution", kernel, &params, &buffers, Groups::Rows);
        let [tiled, by_channel] = [shape.tiled, shape.by_channel].map(u32::from);
        let params = [key_heads, heads, key_dim, dim, tiled, by_channel, held, values, stride];
        let buffers = [&scratch.mixer.inputs, &scratch.mixer.gates, vectors, &scratch.mixer.projected];
        self.one("recurrence", Kernel::Delta, &params, &buffers, Groups::Each(heads));
        let value_at = 2 * shape.key_width() as u32;
        let eps = b.norm.eps.to_bits();
        let params = [heads * dim, eps, stride, value_at, columns.gate as u32, dim, 0, by_channel, dim];
        self.made(
            "norm and gate",
            Kernel::GatedHeads,
            &params,
            (&scratch.mixer.projected, norm),
            Groups::Rows,
        );
    }

    fn mamba2(&mut self, b: &Blueprint, parts: &Mamba2Parts, (held, vectors): Place<'_>) {
        let Mamba2Parts { shape, projected, constants, has_bias, skip, norm } = parts;
        let scratch = self.scratch;
        self.products("gate, state, steps", projected, (&scratch.mixer.projected, shape.projected()), None);
        let sizes =
            [shape.channels(), shape.projected(), shape.kernel, shape.matrices_len(), shape.state_len()];
        let [channels, stride, taps, matrices, values] = sizes.map(|size| size as u32);
        let sizes = [shape.heads, shape.head_dim, shape.state, shape.groups, shape.width()];
        let [heads, dim, states, groups, width] = sizes.map(|size| size as u32);
        let bias = u32::from(*has_bias);
        let steps_at = width + channels;
        let params = [channels, stride, taps, held, matrices, values, width, bias, heads, steps_at];
        let buffers =
            [&scratch.mixer.projected, constants, vectors, &scratch.mixer.inputs, &scratch.mixer.gates];
        let kernel = Kernel::Convolve(Convolution::Mamba2);
        self.one("convolution", kernel, &params, &buffers, Groups::Rows);
        let params = [heads, dim, states, groups, held, values, stride, width];
        let buffers = [&scratch.mixer.inputs, &scratch.mixer.gates, skip, vectors, &scratch.mixer.projected];
        self.one("recurrence", Kernel::Mamba2, &params, &buffers, Groups::Each(heads));
        let normed = norm.as_ref().map_or(0, |_| width / groups);
        let params = [width, b.norm.eps.to_bits(), stride, width, 0, normed, 1, 0, width];
        let weights = norm.as_ref().unwrap_or(&scratch.nothing);
        self.made(
            "gate and norm",
            Kernel::GatedHeads,
            &params,
            (&scratch.mixer.projected, weights),
            Groups::Rows,
        );
    }

    fn short_conv(&mut self, parts: &ShortConvParts, (held, vectors): Place<'_>) {
        let ShortConvParts { spec, projected, taps } = parts;
        let scratch = self.scratch;
        self.products("gates and inputs", projected, (&scratch.mixer.projected, 3 * spec.width), None);
        let [width, kernel, values] = [spec.width, spec.kernel, spec.state_len()].map(|size| size as u32);
        let params = [width, 3 * width, kernel, held, 0, values];
        let buffers = [&scratch.mixer.projected, taps, vectors, &scratch.mixer.inputs, &scratch.mixer.gates];
        let kernel = Kernel::Convolve(Convolution::Short);
        self.one("convolution", kernel, &params, &buffers, Groups::Rows);
        self.row(Kernel::Copy, (&scratch.mixer.inputs, spec.width), None, None);
    }
}
