//! A decode step as data: shaders, the contents of buffers, dispatches. Whatever speaks WebGPU can run it, a browser's tab included,
//! and gets the same logits.
//!
//! Limits: one row of a whole model; the arithmetic is that of integers where it must be, which every device has.

use super::{
    GpuShard,
    buffers::GpuBuffers,
    source::{Arithmetic, Kernel},
};
use crate::{
    Error, Result,
    executor::{Executor, Input, Item, Output, Workspace},
    state::SessionState,
};

/// What a decode step does on a device.
#[derive(Clone, Debug)]
pub struct Program {
    /// WGSL, with how its bindings are used, in order: `r` read, `w` read and written.
    pub shaders: Vec<(String, &'static str)>,
    /// What each buffer holds before the step.
    pub buffers: Vec<Vec<u8>>,
    /// What is done, in order.
    pub actions: Vec<Action>,
    /// The buffer with the logits.
    pub logits: usize,
}

/// One thing that a device does.
#[derive(Clone, Debug)]
pub enum Action {
    /// Workgroups of a shader, bound to buffers in the order of its bindings.
    Dispatch {
        /// Which shader.
        shader: usize,
        /// Which buffers.
        buffers: Vec<usize>,
        /// Workgroups in x and y.
        groups: [u32; 2],
    },
    /// The beginning of one buffer to another one.
    Copy {
        /// From.
        from: usize,
        /// To.
        to: usize,
        /// How much.
        bytes: usize,
    },
}

/// A program under way.
#[derive(Default)]
struct Writer {
    kernels: Vec<Kernel>,
    buffers: Vec<wgpu::Buffer>,
    actions: Vec<Action>,
}

fn place<T: PartialEq>(all: &mut Vec<T>, one: T) -> usize {
    all.iter().position(|other| *other == one).unwrap_or_else(|| {
        all.push(one);
        all.len() - 1
    })
}

impl GpuShard {
    /// Decodes `token` behind `state` and gives the step as data.
    ///
    /// # Errors
    /// Those of [`Executor::step`]; [`Error::Unsupported`] for a part of a model.
    pub fn program(&self, ws: &mut Workspace, state: &mut SessionState, token: u32) -> Result<Program> {
        self.step(ws, state, token)?;
        let ids = [token];
        let item = Item { state, input: Input::Tokens(&ids), output: Output::Last };
        let row = self.enter(&[item])?;
        let ws: &mut GpuBuffers = ws.buffers()?;
        let mut writer = Writer::default();
        for bound in &ws.layers {
            let Some((_, steps)) = bound else { return Err(part()) };
            steps
                .of_one_row()
                .for_each(|(kernel, buffers, groups)| writer.dispatch(kernel.kernel, buffers, groups));
        }
        let [x, wanted] = [0, 1].map(|at| place(&mut writer.buffers, ws.scratch.x[at].clone()));
        writer.actions.push(Action::Copy { from: x, to: wanted, bytes: 4 * row.len() });
        let tail = ws.tail.as_ref().ok_or_else(part)?;
        tail.of_one_row()
            .for_each(|(kernel, buffers, groups)| writer.dispatch(kernel.kernel, buffers, groups));
        let logits = place(&mut writer.buffers, ws.scratch.logits.clone());
        // The step has left everything as it would find it, but for the row that it began with.
        let read = |buffer: &wgpu::Buffer| {
            self.gpu.finish(self.gpu.encoder(), &[(buffer, 0..buffer.size() as usize)])
        };
        let mut buffers = writer.buffers.iter().map(read).collect::<Result<Vec<_>>>()?;
        let bytes: Vec<u8> = row.iter().flat_map(|x| x.to_le_bytes()).collect();
        buffers[x][..bytes.len()].copy_from_slice(&bytes);
        let everywhere = Arithmetic { fused: false, keeps_subnormals: false };
        let shader = |kernel: &Kernel| (kernel.source(everywhere), kernel.bindings());
        let shaders = writer.kernels.iter().map(shader).collect();
        Ok(Program { shaders, buffers, actions: writer.actions, logits })
    }
}

fn part() -> Error {
    Error::unsupported("a program of a part of a model")
}

impl Writer {
    fn dispatch(&mut self, kernel: Kernel, buffers: &[wgpu::Buffer], groups: [u32; 2]) {
        let shader = place(&mut self.kernels, kernel);
        let buffers = buffers.iter().map(|buffer| place(&mut self.buffers, buffer.clone())).collect();
        self.actions.push(Action::Dispatch { shader, buffers, groups });
    }
}
