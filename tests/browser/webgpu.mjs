// A decode step through a browser's WebGPU: the program that an executor wrote (`shard::executor::gpu::Program`), run by the page
// and held against the logits of the processor, bit for bit.
//
// SHOAL_PROGRAM=FOLDER with program.json and buffers.bin, SHOAL_BROWSER_ARGS with what this browser needs to have WebGPU
// (`--enable-unsafe-webgpu --use-webgpu-adapter=swiftshader` without a GPU). `tests/integration/browser.rs` writes and sets them.

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { join } from 'node:path';

import { browser, check } from './driver.mjs';

const folder = process.env.SHOAL_PROGRAM;
const files = { '/': ['text/html', Buffer.from('<!doctype html><title>WebGPU</title>')] };
for (const [name, type] of [['program.json', 'application/json'], ['buffers.bin', 'application/octet-stream']]) files[`/${name}`] = [type, readFileSync(join(folder, name))];

/** In the page: runs the program and gives the bytes of the logits as hexadecimal. */
async function decode() {
  const program = await (await fetch('program.json')).json();
  const contents = await (await fetch('buffers.bin')).arrayBuffer();
  const adapter = await navigator.gpu?.requestAdapter();
  if (!adapter) return { missing: navigator.gpu ? 'an adapter' : 'WebGPU' };
  const largest = Math.max(...program.buffers.map((buffer) => buffer.bytes));
  const device = await adapter.requestDevice({ requiredLimits: { maxStorageBufferBindingSize: largest, maxBufferSize: Math.max(largest, 1 << 28) } });
  const wrong = [];
  device.addEventListener('uncapturederror', (event) => wrong.push(event.error.message));
  const { STORAGE, COPY_SRC, COPY_DST, MAP_READ } = GPUBufferUsage;
  const buffers = program.buffers.map(({ at, bytes }) => {
    const buffer = device.createBuffer({ size: bytes, usage: STORAGE | COPY_SRC | COPY_DST });
    device.queue.writeBuffer(buffer, 0, contents, at, bytes);
    return buffer;
  });
  const kernels = program.shaders.map(({ source, bindings }) => {
    const entries = [...bindings].map((usage, binding) => ({ binding, visibility: GPUShaderStage.COMPUTE, buffer: { type: usage === 'r' ? 'read-only-storage' : 'storage' } }));
    const layout = device.createBindGroupLayout({ entries });
    const compute = { module: device.createShaderModule({ code: source }), entryPoint: 'main' };
    return { layout, pipeline: device.createComputePipeline({ layout: device.createPipelineLayout({ bindGroupLayouts: [layout] }), compute }) };
  });
  const encoder = device.createCommandEncoder();
  for (const action of program.actions) {
    if ('copy' in action) {
      encoder.copyBufferToBuffer(buffers[action.copy.from], 0, buffers[action.copy.to], 0, action.copy.bytes);
      continue;
    }
    const { shader, bound, groups } = action.dispatch;
    const { layout, pipeline } = kernels[shader];
    const pass = encoder.beginComputePass();
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, device.createBindGroup({ layout, entries: bound.map((index, binding) => ({ binding, resource: { buffer: buffers[index] } })) }));
    pass.dispatchWorkgroups(...groups);
    pass.end();
  }
  const back = device.createBuffer({ size: program.logits.bytes, usage: MAP_READ | COPY_DST });
  encoder.copyBufferToBuffer(buffers[program.logits.buffer], 0, back, 0, program.logits.bytes);
  device.queue.submit([encoder.finish()]);
  await back.mapAsync(GPUMapMode.READ);
  const logits = [...new Uint8Array(back.getMappedRange())].map((byte) => byte.toString(16).padStart(2, '0')).join('');
  const { vendor, architecture, description } = adapter.info;
  return { wrong, logits, dispatches: program.actions.length, adapter: [vendor, architecture, description].filter(Boolean).join(' ') };
}

check('a page decodes a token with the logits of the processor', async () => {
  const server = createServer((request, response) => {
    const [type, body] = files[request.url] ?? [];
    response.writeHead(body ? 200 : 404, { 'content-type': type ?? 'text/plain' }).end(body);
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  try {
    const context = await browser.newContext();
    const page = await context.newPage();
    await page.goto(`http://127.0.0.1:${server.address().port}/`);
    const { missing, wrong, logits, dispatches, adapter } = await page.evaluate(decode);
    if (missing) {
      console.log(`skipped: this browser has no ${missing}`);
      assert.notEqual(process.env.SHOAL_BROWSER, 'required', `no ${missing}`);
      return;
    }
    assert.deepEqual(wrong, []);
    const { expected } = JSON.parse(files['/program.json'][1]);
    const hash = (hex) => createHash('sha256').update(Buffer.from(hex, 'hex')).digest('hex');
    assert.ok(logits.length > 1_000 && dispatches > 20, `${logits.length} digits, ${dispatches} dispatches`);
    assert.equal(hash(logits), expected, `on ${adapter}`);
    console.log(`decoded on ${adapter}: ${dispatches} actions, sha256 ${expected}`);
    await context.close();
  } finally {
    server.close();
  }
});
