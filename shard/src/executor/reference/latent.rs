//! Latent attention as profile `d1` computes it: absorbed, one row of rotated key and latent per position.

use super::{Model, Rows, math};
use crate::models::{Latent, layer_name};

impl Model {
    pub(super) fn latent(&self, rows: &mut Rows, index: usize, latent: Latent, h: &[f32]) -> Vec<f32> {
        let Latent { rank, rotated, plain, value, .. } = latent;
        let name = |suffix: &str| layer_name(index, suffix);
        let position = rows.keys.len();
        let queries = match latent.query_rank {
            None => self.linear(&name("attn_q"), h),
            Some(_) => {
                let mut narrow = self.linear(&name("attn_q_a"), h);
                self.norm_after(&name("attn_q_a_norm.weight"), &mut narrow);
                self.linear(&name("attn_q_b"), &narrow)
            }
        };
        let made = self.linear(&name("attn_kv_a_mqa"), h);
        let mut key = made[rank..].to_vec();
        if let Some(rope) = latent.rope {
            self.rotate(&mut key, rope, position);
        }
        let mut own = made[..rank].to_vec();
        self.norm_after(&name("attn_kv_a_norm.weight"), &mut own);
        key.extend(own);
        rows.keys.push(self.stored(key));
        rows.values.push(Vec::new());
        let mut out = Vec::new();
        for (head, query) in queries.chunks_exact(plain + rotated).enumerate() {
            let mut q = query[plain..].to_vec();
            if let Some(rope) = latent.rope {
                self.rotate(&mut q, rope, position);
            }
            q.extend(self.product(self.slice(&name("attn_k_b.weight"), head * rank, rank), &query[..plain]));
            let scores: Vec<f32> = rows
                .keys
                .iter()
                .map(|key| q.iter().zip(key).map(|(q, k)| q * k).sum::<f32>() * latent.scale)
                .collect();
            let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let exps: Vec<f32> = scores.iter().map(|s| (s - largest).exp()).collect();
            let total: f32 = exps.iter().sum();
            let mut mixed = vec![0.0; rank];
            for (exp, key) in exps.iter().zip(&rows.keys) {
                math::add(&mut mixed, &key[rotated..], exp / total);
            }
            out.extend(self.product(self.slice(&name("attn_v_b.weight"), head * value, value), &mixed));
        }
        self.linear(&name("attn_output"), &out)
    }
}
