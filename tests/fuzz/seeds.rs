//! Writes the seed corpus: `cargo run --example seeds` in this folder. Small files, each showing the fuzzer a part
//! of a format that it would be long in finding. Inputs that once failed lie beside them as `failed-*`.

use std::{fs, io::Cursor, path::Path};

use shard::{
    gguf::Writer,
    quant::{self, Format},
};

fn main() {
    wire();
    put("gguf", "empty", &file(Writer::new(), &[]));
    put("gguf", "pairs", &pairs());
    for format in quant::ALL.iter().chain(quant::FOREIGN) {
        put("gguf", format.name, &tensors(&[("t", &[format.block_len as u64, 2], format)]));
    }
    let three: [Announced; 3] = [
        ("a", &[3], &quant::F32),
        ("b.weight", &[32, 1, 2], &quant::Q8_0),
        ("c", &[2, 1, 1, 2], &quant::F16),
    ];
    put("gguf", "three-tensors", &tensors(&three));
    put("gguf", "vocabulary", &vocabulary("gpt2"));
    for model in ["gpt2", "llama"] {
        let mut input = vec![b'G', 9];
        input.extend(b"a ab <s>b");
        input.extend(vocabulary(model));
        put("tokenizer", &format!("file-{model}"), &input);
    }
    for (name, text) in DESCRIPTIONS {
        put("tokenizer", name, format!("#{text}").as_bytes());
    }
    for (name, config, header) in CHECKPOINTS {
        put("convert", name, [config, TOKENIZER, SETTINGS, header].join("\0").as_bytes());
    }
    for (index, (template, conversation)) in TEMPLATES.iter().enumerate() {
        put("template", &format!("template-{index}"), format!("{template}\0{conversation}").as_bytes());
    }
}

/// What nodes say to each other, from the frozen samples of the wire formats.
fn wire() {
    for line in include_str!("../../p2p/src/wire/golden.txt").lines() {
        let (name, hex) = line.split_once(' ').expect("a name and its bytes");
        let digit = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex");
        let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(digit).collect();
        let behind = |which: u8| [&[which], bytes.as_slice()].concat();
        match name.split('-').next() {
            Some("ask") => put("control", name, &behind(0)),
            Some("answer") => put("control", name, &behind(1)),
            Some("delegate") => put("control", name, &behind(2)),
            Some("announcement") => put("announce", name, &bytes),
            Some("hello") => put("frame", name, &bytes),
            // A stream: hello, the header, and more than a small payload.
            _ => put("frame", name, &[b"shh1".as_slice(), &[0; 20], &bytes, &[0; 256]].concat()),
        }
    }
    // Two blocks of eight bits, and two rows of floats.
    let block = [&[0xfa, 0x3d, 127], [3; 31].as_slice()].concat();
    put("codec", "q8", &[&[1], block.as_slice(), &block].concat());
    put("codec", "raw", &[&[0], [0, 0, 0x80, 0x3f].repeat(64).as_slice()].concat());
    put("receipt", "proof", b"shp1");
    put("receipt", "equivocation", b"she1");
    put("receipt", "receipt", b"shr1");
    put("receipt", "challenge", b"shq1");
}

fn put(target: &str, name: &str, bytes: &[u8]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    fs::create_dir_all(&folder)
        .and_then(|()| fs::write(folder.join(name), bytes))
        .expect("the corpus can be written");
}

type Announced = (&'static str, &'static [u64], &'static Format);

/// The file of `writer` with these tensors, their bytes counting up.
fn file(mut writer: Writer, tensors: &[(&str, &[u64], &'static Format)]) -> Vec<u8> {
    for (name, dims, format) in tensors {
        writer.add_tensor_info(name, dims, format);
    }
    let mut out = writer.start(Cursor::new(Vec::new())).expect("a sound header");
    for (_, dims, format) in tensors {
        let weights = dims.iter().product::<u64>() as usize;
        let len = format.row_bytes(weights).expect("whole blocks") + format.tail_bytes();
        let bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
        out.tensor(&bytes).expect("the announced length");
    }
    out.finish().expect("all tensors").into_inner()
}

fn tensors(tensors: &[(&str, &[u64], &'static Format)]) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.add_str("general.architecture", "llama").set_alignment(8);
    file(writer, tensors)
}

/// A pair of every type the writer knows.
fn pairs() -> Vec<u8> {
    let mut writer = Writer::new();
    writer
        .add_str("general.name", "n")
        .add_bool("b", true)
        .add_u32("u", 1)
        .add_i32("i", -1)
        .add_u64("v", u64::MAX);
    writer.add_i64("j", i64::MIN).add_f32("f", f32::NAN).add_f64("d", 1e300);
    writer.add_strs("s", &["", "a", "\u{e9}"]).add_f32s("x", &[0.5, -0.0]).add_i32s("y", &[1, -1]);
    writer.add_u32s("z", &[u32::MAX]).add_u8s("w", &[0, 255]).add_bools("t", &[true, false]);
    file(writer, &[])
}

/// A few tokens of every kind.
fn vocabulary(model: &str) -> Vec<u8> {
    let mut writer = Writer::new();
    let tokens =
        ["<unk>", "<s>", "</s>", "a", "b", "\u{120}", "\u{2581}", "ab", "\u{120}a", "\u{2581}a", "<0xC3>"];
    writer.add_str("tokenizer.ggml.model", model).add_str("tokenizer.ggml.pre", "gpt-2");
    writer.add_strs("tokenizer.ggml.tokens", &tokens);
    writer.add_i32s("tokenizer.ggml.token_type", &[2, 3, 3, 1, 1, 1, 1, 1, 1, 4, 6]);
    writer.add_f32s("tokenizer.ggml.scores", &[0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -4.0, -0.5, -0.7, -0.6, 0.0]);
    writer.add_strs("tokenizer.ggml.merges", &["a b", "\u{120} a"]);
    writer.add_u32("tokenizer.ggml.bos_token_id", 1).add_u32("tokenizer.ggml.eos_token_id", 2);
    writer.add_bool("tokenizer.ggml.add_bos_token", true);
    file(writer, &[])
}

/// Vocabularies as `targets/tokenizer.rs` describes them.
const DESCRIPTIONS: &[(&str, &str)] = &[
    (
        "gpt-2",
        "gpt2\ngpt-2\na\nC<s>\nNab\nN\u{120}a\nNabc\nMa b\nM\u{120} a\nMab c\n\nab abc  a\u{e9}'s 123\n",
    ),
    (
        "llama-3",
        "gpt2\nllama-bpe\nabe\nC<|begin_of_text|>\nC<|eot_id|>\nNabc\nU  \nMa b\n\n<|eot_id|>abc   I'LL 1234\r\n\n x",
    ),
    ("qwen", "gpt2\nqwen2\na\nC<|im_end|>\nMa b\nMab ab\nMb a\n\nababab\u{6f22}\u{5b57} \u{1f600}\t\n  z"),
    ("deepseek", "gpt2\ndeepseek-v3\na\nC<s>\nM1 2\n\n\u{6f22}\u{5b57}abc 1234!x -- \u{3042}"),
    ("gpt-4o", "gpt2\ngpt-4o\na\nC<|return|>\nC<|call|>\nC<|end|>\nMx y\n\nHelloWorld'S x/\n/ xy"),
    (
        "llama-2",
        "llama\ndefault\nabs\n?<unk>\nC<s>\nN\u{2581}\nNa\nNb\nNab\nN\u{2581}a\nN\u{2581}\u{2581}\n\n ab  ab\u{e9}",
    ),
    ("gemma", "llama\ndefault\nab\n?<unk>\nC<bos>\nU\n\nU  \nNa\nX<unused>\n\na  <bos><unused>\u{2581}"),
    ("phi-3", "llama\ndefault\nabspw\n?<unk>\nC<s>\nC<|end|>\nU<u>\nNa\n\n<|end|>  a <u> a "),
    ("few-bytes", "llama\ndefault\nn\n?<unk>\nCx\nNa\nB<0xC3>\nB<0xA9>\n\na\u{e9}\u{e8}"),
];

/// `tokenizer.json` of all checkpoints.
const TOKENIZER: &str = r#"{"model":{"type":"BPE","byte_fallback":true,"vocab":{"<unk>":0,"<s>":1,"a":2,"b":3},"merges":["a b"]},"added_tokens":[{"id":1,"content":"<s>","special":true}],"normalizer":{"type":"Prepend","prepend":"\u2581"},"pre_tokenizer":null}"#;
const SETTINGS: &str = r#"{"bos_token":"<s>","chat_template":"{{ messages[0].content }}"}"#;

/// Names, `config.json` and tensor tables.
const CHECKPOINTS: &[(&str, &str, &str)] = &[
    (
        "llama",
        r#"{"model_type":"llama","hidden_size":4,"num_attention_heads":2,"num_key_value_heads":1,"num_hidden_layers":1,"intermediate_size":6,"vocab_size":4,"rms_norm_eps":1e-5,"rope_theta":10000.0,"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":64}}"#,
        r#"{"model.embed_tokens.weight":{"dtype":"F32","shape":[4,4],"data_offsets":[0,64]},"model.norm.weight":{"dtype":"F16","shape":[4],"data_offsets":[64,72]},"lm_head.weight":{"dtype":"BF16","shape":[4,4],"data_offsets":[72,104]},"model.layers.0.self_attn.q_proj.weight":{"dtype":"F32","shape":[4,4],"data_offsets":[104,168]},"model.layers.0.self_attn.k_proj.weight":{"dtype":"F32","shape":[2,4],"data_offsets":[168,200]},"model.layers.0.self_attn.v_proj.weight":{"dtype":"F32","shape":[2,4],"data_offsets":[168,200]},"model.layers.0.self_attn.o_proj.weight":{"dtype":"F32","shape":[4,4],"data_offsets":[104,168]},"model.layers.0.mlp.gate_proj.weight":{"dtype":"BF16","shape":[6,4],"data_offsets":[104,152]},"model.layers.0.mlp.up_proj.weight":{"dtype":"BF16","shape":[6,4],"data_offsets":[104,152]},"model.layers.0.mlp.down_proj.weight":{"dtype":"BF16","shape":[4,6],"data_offsets":[104,152]},"model.layers.0.input_layernorm.weight":{"dtype":"F16","shape":[4],"data_offsets":[0,8]},"model.layers.0.post_attention_layernorm.weight":{"dtype":"F16","shape":[4],"data_offsets":[0,8]}}"#,
    ),
    (
        "qwen-moe",
        r#"{"model_type":"qwen3_moe","hidden_size":4,"num_attention_heads":2,"head_dim":2,"num_hidden_layers":1,"num_experts":2,"num_experts_per_tok":1,"moe_intermediate_size":2,"vocab_size":4,"tie_word_embeddings":true,"eos_token_id":[1,2]}"#,
        r#"{"model.embed_tokens.weight":{"dtype":"F32","shape":[4,4],"data_offsets":[0,64]},"model.layers.0.mlp.experts.0.gate_proj.weight":{"dtype":"F16","shape":[2,4],"data_offsets":[0,16]},"model.layers.0.mlp.gate.weight":{"dtype":"F16","shape":[2,4],"data_offsets":[0,16]}}"#,
    ),
    (
        "phi",
        r#"{"model_type":"phi3","hidden_size":4,"num_attention_heads":2,"num_hidden_layers":1,"intermediate_size":2,"vocab_size":4,"max_position_embeddings":128,"original_max_position_embeddings":64,"rope_scaling":{"type":"longrope","long_factor":[1.0],"short_factor":[1.0]}}"#,
        r#"{"model.layers.0.self_attn.qkv_proj.weight":{"dtype":"F32","shape":[12,4],"data_offsets":[0,192]},"model.layers.0.mlp.gate_up_proj.weight":{"dtype":"F32","shape":[4,4],"data_offsets":[0,64]}}"#,
    ),
];

/// Templates and conversations as `targets/template.rs` reads them.
const TEMPLATES: &[(&str, &str)] = &[
    (
        "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles') }}{% endif %}{{ '[INST] ' + message['content'] | trim + ' [/INST]' }}{% endfor %}",
        r#"[{"role":"user","content":"hi"},{"role":"assistant","content":"a"}]"#,
    ),
    (
        "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{%- endfor %}{%- if add_generation_prompt %}<|im_start|>assistant\n{%- endif %}",
        r#"[{"role":"system","content":""},{"role":"user","content":"<|im_end|>"}]"#,
    ),
    (
        "{%- macro render(x, depth=0) -%}{%- if x is mapping %}{% for k, v in x | items %}{{ k }}:{{ render(v, depth + 1) }}{% endfor %}{% else %}{{ x | tojson }}{% endif %}{%- endmacro -%}{%- set ns = namespace(last='') -%}{% for m in messages[::-1] %}{% set ns.last = m.content.split('</think>')[-1].lstrip('\n') %}{{ render(m) }}{% endfor %}{{ ns.last | upper }}{{ strftime_now('%d %b %Y') }}",
        r#"[{"role":"tool","content":{"a":[1,2.5,null,true]}},{"role":"user","content":[{"type":"text","text":"x"}]}]"#,
    ),
    ("{% for i in range(100000) %}{% for j in range(100000) %}{{ i * j }}{% endfor %}{% endfor %}", "[]"),
    (
        "{% set x = 'a' * 1000 %}{{ x * 1000 }}{{ [1] * 9 }}{{ 2 ** 9 }}{{ 'a' ~ x | replace('a', x) }}",
        "[{}]",
    ),
];
