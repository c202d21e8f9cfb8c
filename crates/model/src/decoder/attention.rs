//! Attention: projections, QK norm, rotation, KV cache, scores, output gate.

use super::builder::Builder;
use crate::error::{Error, Result};
use crate::hyper::{Attention, KvSource, QkNorm};
use crate::layout::KvLayout;
use crate::ports;
use plan::graph::{Caches, Rows, Tensor};

impl Builder<'_> {
    /// Output of all heads, `[M, H * D]`, before the output projection.
    pub(super) fn attention(
        &mut self,
        i: usize,
        attention: &Attention,
        h: Tensor,
        table: Tensor,
        rows: Rows,
    ) -> Result<Tensor> {
        let Attention { heads, kv_heads, head_size, style, scores, .. } = *attention;
        let m = self.step.bucket.rows();
        let (q_rows, kv_rows) = (heads * head_size, kv_heads * head_size);
        let all = q_rows + 2 * kv_rows;
        let project = |builder: &mut Self, name: &str, at: usize, n: usize, heads: usize| {
            let (name, width) = (format!("blk.{i}.{name}"), builder.hyper.width);
            let whole = format!("blk.{i}.attn_qkv");
            let y = builder.product_of(&name, &whole, h, [at, n, all], width)?;
            Ok::<_, Error>(builder.g.reshape(y, &[m, heads, head_size])?)
        };
        // A gated layer's `attn_q` has for each head the rows of its query, then those of its gate.
        let (queries, gates) = (format!("blk.{i}.attn_q"), format!("blk.{i}.attn_gate"));
        let both = format!("{queries}.weight");
        let mut q = match attention.gated {
            false => project(self, "attn_q", 0, q_rows, heads)?,
            true => {
                let q = self.product_of_halves(&queries, &both, h, q_rows, [heads, 0])?;
                self.g.reshape(q, &[m, heads, head_size])?
            }
        };
        let own = match attention.kv {
            KvSource::Own => {
                let k = project(self, "attn_k", q_rows, kv_rows, kv_heads)?;
                Some((k, project(self, "attn_v", q_rows + kv_rows, kv_rows, kv_heads)?))
            }
            KvSource::OneMatrix => {
                let k = project(self, "attn_k", q_rows, kv_rows, kv_heads)?;
                Some((k, k))
            }
            KvSource::Layer(_) => None,
        };
        q = self.qk_norm(&format!("blk.{i}.attn_q_norm"), q, attention.qk_norm)?;
        let own = match own {
            Some((k, mut v)) => {
                let k = self.qk_norm(&format!("blk.{i}.attn_k_norm"), k, attention.qk_norm)?;
                if attention.value_norm {
                    self.g.at(format!("blk.{i}.attn_v_norm"));
                    let ones = self.derived(&ports::ones(head_size), &vec![1.0; head_size])?;
                    v = self.g.rms_norm(v, ones, self.hyper.norm.eps)?;
                }
                Some((k, v))
            }
            None => None,
        };
        self.g.at(format!("blk.{i}.rope"));
        let q = self.g.rope(q, table, style)?;
        let caches = match (own, attention.kv) {
            (Some((k, v)), _) => {
                let k = self.g.rope(k, table, style)?;
                self.write_cache(i, attention, rows, [k, v])?
            }
            (None, KvSource::Layer(layer)) => self.caches[&layer],
            (None, _) => unreachable!("other layers computed keys and values above"),
        };
        self.caches.insert(i, caches);
        self.g.at(format!("blk.{i}.attention"));
        let sinks = match attention.sinks {
            true => Some(self.vector(&format!("blk.{i}.attn_sinks.weight"), heads)?),
            false => None,
        };
        let mixed = self.g.attention(q, caches, rows, sinks, scores, self.step.bucket.context)?;
        let mixed = self.g.reshape(mixed, &[m, q_rows])?;
        if !attention.gated {
            return Ok(mixed);
        }
        let gate = self.product_of_halves(&gates, &both, h, q_rows, [heads, 1])?;
        Ok(self.g.gate(gate, mixed)?)
    }

    /// Normalises queries or keys `[M, H, D]`, if the layer does.
    fn qk_norm(&mut self, name: &str, x: Tensor, kind: Option<QkNorm>) -> Result<Tensor> {
        let &[m, heads, size] = self.g.shape(x) else { unreachable!("`attention` made them") };
        match kind {
            None => Ok(x),
            Some(QkNorm::Head) => self.norm(name, x, size),
            Some(QkNorm::Row) => {
                let x = self.g.reshape(x, &[m, heads * size])?;
                let x = self.norm(name, x, heads * size)?;
                Ok(self.g.reshape(x, &[m, heads, size])?)
            }
        }
    }

    /// Writes the keys and values of this step's rows to the layer's KV cache.
    fn write_cache(
        &mut self,
        i: usize,
        attention: &Attention,
        rows: Rows,
        [k, v]: [Tensor; 2],
    ) -> Result<Caches> {
        // A ring has room for this step's rows too.
        let chunk = self.step.bucket.chunk;
        let ring = self.step.layout.ring.map(|longest| longest.max(chunk));
        let layout = KvLayout { ring, ..self.step.layout };
        let (shape, (_, ring)) = (layout.shape(attention), layout.positions(attention));
        self.g.at(format!("blk.{i}.kv"));
        let keys = self.state(&ports::key_cache(i), self.step.cache, &shape)?;
        let values = self.state(&ports::value_cache(i), self.step.cache, &shape)?;
        let keys = self.g.kv_write(keys, rows, k, ring)?;
        Ok(Caches { keys, values: self.g.kv_write(values, rows, v, ring)?, ring })
    }
}
