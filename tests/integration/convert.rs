//! `shoal convert` gives the file that an independent converter gives.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use harness::{Shoal, data};
use serde_json::json;
use shard::{
    convert::{Options, convert},
    gguf::{Gguf, Tensor, Value, Writer},
    quant,
};

/// Checkpoints under `tests/data/hf`, each with its twin `tests/data/families/NAME.gguf`.
const CHECKPOINTS: &[&str] = &[
    "llama",
    "llama3",
    "qwen2",
    "gemma3",
    "phi3",
    "mixtral",
    "qwen3moe",
    "qwen3next",
    "qwen35",
    "deepseek_v3",
    "falcon_h1",
    "gemma3n",
    "glm4moe",
    "granitehybrid_moe",
    "hunyuan",
    "kimi_linear",
    "lfm2moe",
    "llama4",
    "mistral3",
    "nemotron",
    "nemotron_h_moe",
    "olmo3",
    "phi2",
    "qwen3vlmoe",
];

fn same(ours: &Tensor<'_>, theirs: &Tensor<'_>, name: &str) {
    assert_eq!(ours.info.dims, theirs.info.dims, "{name}: shape");
    let (a, b) = (ours.to_f32(), theirs.to_f32());
    // Computed factors may differ in the last bits; weights may not.
    let tolerance = if name == "rope_freqs.weight" { 1e-6 } else { 0.0 };
    for (i, (a, b)) in a.iter().zip(&b).enumerate() {
        assert!((a - b).abs() <= tolerance * b.abs(), "{name}[{i}]: {a} here, {b} there");
    }
}

/// With `SHOAL_CHECKPOINTS=FOLDER`, in which `hf_dir.saved` wrote others, these as well: `cargo test -p shoal-tests --test integration --
/// convert::every --nocapture`.
#[test]
fn every_tensor_and_key_equals_the_independent_converters() {
    let folder = tempfile::tempdir().unwrap();
    let mut checkpoints: Vec<PathBuf> = CHECKPOINTS.iter().map(|name| data("hf").join(name)).collect();
    if let Some(more) = std::env::var_os("SHOAL_CHECKPOINTS") {
        let more = fs::read_dir(more).unwrap().map(|entry| entry.unwrap().path());
        checkpoints.extend(more.filter(|path| path.join("config.json").exists()));
    }
    for path in &checkpoints {
        let name = path.file_name().unwrap().to_str().unwrap();
        let output = folder.path().join(format!("{name}.gguf"));
        let format = quant::by_name("f16").unwrap();
        convert(path, &output, &Options::new(format, 2), &|_, _| {})
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let ours = Gguf::open(&output).unwrap();
        let theirs = Gguf::open(data("families").join(format!("{name}.gguf"))).unwrap();
        for info in theirs.tensors() {
            let theirs = theirs.require(&info.name).unwrap();
            let ours = ours.require(&info.name).unwrap_or_else(|e| panic!("{name}: {e}"));
            same(&ours, &theirs, &info.name);
        }
        assert_eq!(ours.tensors().len(), theirs.tensors().len(), "{name}: extra tensors");
        check_metadata(name, &ours, &theirs);
        println!("{name}: equal");
    }
}

/// The layer that predicts one token further stands behind the last.
#[test]
fn a_layer_that_predicts_further_comes_along() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    fs::create_dir(&source).unwrap();
    for (from, to) in [
        ("hf/qwen35/config.json", "config.json"),
        ("hf/qwen35/tokenizer.json", "tokenizer.json"),
        ("hf/qwen35/tokenizer_config.json", "tokenizer_config.json"),
        ("hf/qwen35/model.safetensors", "text.safetensors"),
        ("mtp/mtp.safetensors", "mtp.safetensors"),
    ] {
        fs::copy(data(from), source.join(to)).unwrap();
    }
    let output = folder.path().join("model.gguf");
    convert(&source, &output, &Options::new(quant::by_name("f16").unwrap(), 2), &|_, _| {}).unwrap();
    let [ours, theirs] = [&output, &data("mtp/qwen35.gguf")].map(|path| Gguf::open(path).unwrap());
    for info in theirs.tensors() {
        same(&ours.require(&info.name).unwrap(), &theirs.require(&info.name).unwrap(), &info.name);
    }
    assert_eq!(ours.tensors().len(), theirs.tensors().len());
    check_metadata("qwen35", &ours, &theirs);
}

fn check_metadata(name: &str, ours: &Gguf, theirs: &Gguf) {
    // What describes the file and not the model, or is said in another way with the same meaning.
    let skip = ["general.name", "general.license", "attention.sliding_window", "add_eos_token", "vocab_size"];
    for (key, value) in theirs.metadata().iter() {
        if skip.iter().any(|s| key.ends_with(s)) {
            continue;
        }
        if key.ends_with("activation_sparsity_scale") {
            let [ours, theirs] = [ours, theirs].map(|file| file.metadata().f32s(key).unwrap());
            close(&ours, &theirs);
            continue;
        }
        let ours = ours.metadata().get(key).unwrap_or_else(|| panic!("{name}: {key} is missing"));
        assert_eq!(content(&ours), content(&value), "{name}: {key}");
    }
}

/// Quantiles of a normal distribution, which two libraries round in their last bits.
fn close(ours: &[f32], theirs: &[f32]) {
    let same = |(a, b): (&f32, &f32)| a == b || (a - b).abs() < 1e-6;
    assert!(ours.len() == theirs.len() && ours.iter().zip(theirs).all(same), "{ours:?}, expected {theirs:?}");
}

/// All of a value, arrays element by element.
fn content(value: &Value<'_>) -> Vec<String> {
    match value {
        Value::Array(array) => match array.strings() {
            Some(strings) => strings.map(String::from).collect(),
            None => vec![format!("{array:?} {array}")],
        },
        other => vec![other.to_string()],
    }
}

#[test]
fn a_converted_model_answers_like_the_original() {
    let shoal = Shoal::new();
    let output = shoal.home().join("qwen2.gguf");
    let report = shoal.json(
        [
            "convert",
            data("hf/qwen2").to_str().unwrap(),
            "--format",
            "f16",
            "--output",
            output.to_str().unwrap(),
            "--json",
        ],
        "",
    );
    assert_eq!(report["architecture"], "qwen2");
    let eval = |model: &str| {
        shoal.json(["eval", "--model", model, "--tokens", "5 6 7 8", "--greedy", "8", "--json"], "")
    };
    let fixture = data("families/qwen2.gguf");
    assert_eq!(eval(output.to_str().unwrap())["greedy"], eval(fixture.to_str().unwrap())["greedy"]);
}

#[test]
fn rows_that_do_not_fit_a_format_take_the_nearest_that_does() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out.gguf");
    let format = quant::by_name("q4_k").unwrap();
    convert(&data("hf/llama"), &output, &Options::new(format, 1), &|_, _| {}).unwrap();
    let gguf = Arc::new(Gguf::open(&output).unwrap());
    assert_eq!(gguf.require("blk.0.attn_q.weight").unwrap().format.name, "q5_0");
    assert_eq!(gguf.require("output.weight").unwrap().format.name, "q8_0");
    assert_eq!(gguf.require("blk.0.attn_norm.weight").unwrap().format.name, "f32");
}

#[test]
fn a_broken_checkpoint_leaves_no_file_behind() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("checkpoint");
    fs::create_dir(&source).unwrap();
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"] {
        fs::copy(data("hf/llama").join(file), source.join(file)).unwrap();
    }
    let model = source.join("model.safetensors");
    let whole = fs::read(&model).unwrap();
    let output = folder.path().join("out.gguf");
    let options = Options::new(quant::by_name("q8_0").unwrap(), 2);
    for len in [0, 7, 100, whole.len() / 2, whole.len() - 1] {
        fs::write(&model, &whole[..len]).unwrap();
        assert!(convert(&source, &output, &options, &|_, _| {}).is_err(), "{len} of {} bytes", whole.len());
        assert!(!output.exists());
    }
    fs::write(&model, &whole).unwrap();
    fs::write(source.join("config.json"), r#"{"model_type": "mamba"}"#).unwrap();
    let error = convert(&source, &output, &options, &|_, _| {}).unwrap_err().to_string();
    assert!(error.contains("mamba"), "{error}");
}

/// The fixture as publishers split large models: the first part has the metadata and no tensor.
fn split(folder: &Path) -> Vec<PathBuf> {
    let whole = Gguf::open(data("families/qwen2.gguf")).unwrap();
    let tensors = whole.tensors();
    let path = |part: usize| folder.join(format!("qwen2-{part:05}-of-00003.gguf"));
    for (part, own) in
        [&tensors[..0], &tensors[..tensors.len() / 2], &tensors[tensors.len() / 2..]].iter().enumerate()
    {
        let mut writer = Writer::new();
        if part == 0 {
            for (key, value) in whole.metadata().iter() {
                writer.add_value(key, value);
            }
        }
        let count = i32::try_from(tensors.len()).unwrap();
        writer
            .add_u32("split.no", part as u32)
            .add_u32("split.count", 3)
            .add_i32("split.tensors.count", count);
        for info in *own {
            writer.add_tensor_info(&info.name, &info.dims, whole.require(&info.name).unwrap().format);
        }
        let mut out = writer.create(path(part + 1)).unwrap();
        own.iter().for_each(|info| out.tensor(whole.require(&info.name).unwrap().bytes).unwrap());
        out.finish().unwrap();
    }
    (1..=3).map(path).collect()
}

#[test]
fn a_model_in_parts_runs_like_the_whole_and_becomes_one_file_for_a_swarm() {
    let shoal = Shoal::new();
    let parts = split(shoal.home());
    let part = |index: usize| parts[index].to_str().unwrap();
    let eval = |model: &str| {
        shoal.json(["eval", "--model", model, "--tokens", "5 6 7 8", "--greedy", "8", "--json"], "")
    };
    let whole = data("families/qwen2.gguf");
    let expected = eval(whole.to_str().unwrap());
    for part in [part(0), part(2)] {
        assert_eq!(eval(part)["greedy"], expected["greedy"]);
    }
    let inspected = shoal.json(["model", "inspect", part(1), "--json"], "");
    assert_eq!((&inspected["architecture"], &inspected["runs_here"]), (&json!("qwen2"), &json!(true)));
    for command in
        [&["model", "add", part(0)][..], &["up", "--local", "2", "--model", part(0), "--run", "hi"]]
    {
        let error = shoal.fails(command.iter().copied(), "").1;
        assert!(error.contains("one of 3 parts") && error.contains("shoal convert"), "{command:?}: {error}");
    }
    let joined = shoal.home().join("joined.gguf");
    let joined = joined.to_str().unwrap();
    let refused = shoal.fails(["convert", part(0), "--threads", "2", "--output", joined], "").1;
    assert!(refused.contains("leave out --threads"), "{refused}");
    let rounded = shoal.home().join("rounded.gguf");
    shoal.ok(["convert", part(0), "--format", "q8_0", "--output", rounded.to_str().unwrap()], "");
    let rounded = Gguf::open(rounded).unwrap();
    assert_eq!(rounded.require("blk.0.attn_q.weight").unwrap().format.name, "q8_0");
    assert!(rounded.metadata().iter().all(|(key, _)| !key.starts_with("split.")));
    let report = shoal.json(["convert", part(1), "--output", joined, "--json"], "");
    assert_eq!(report["architecture"], "qwen2");
    let (ours, theirs) = (Gguf::open(joined).unwrap(), Gguf::open(&whole).unwrap());
    assert_eq!(ours.metadata().iter().collect::<Vec<_>>(), theirs.metadata().iter().collect::<Vec<_>>());
    for info in theirs.tensors() {
        assert!(
            ours.require(&info.name).unwrap().bytes == theirs.require(&info.name).unwrap().bytes,
            "{}",
            info.name
        );
    }
    shoal.ok(["model", "add", joined, "--name", "joined"], "");
    assert_eq!(eval("joined")["greedy"], expected["greedy"]);
    fs::remove_file(&parts[1]).unwrap();
    let error = shoal.fails(["run", "--model", part(0), "hi"], "").1;
    assert!(error.contains("missing beside it: qwen2-00002-of-00003.gguf"), "{error}");
}

/// A GGUF written again in another format answers nearly as before, and better with an importance matrix of a text than without; what
/// is no matrix stays as it is.
#[test]
fn a_gguf_is_written_again_in_another_format() {
    let shoal = Shoal::new();
    let path = |name: &str| shoal.home().join(name).to_str().unwrap().to_owned();
    let minnow = data("../../shard/minnow/minnow.gguf").to_str().unwrap().to_owned();
    let (text, imatrix) = (path("text.txt"), path("minnow.imatrix"));
    let told = ["a fox", "an owl", "a bear"].map(|animal| {
        let told =
            shoal.json(["run", "--json", "-n", "160", &format!("Tell me a story about {animal}.")], "");
        told["text"].as_str().unwrap().to_owned()
    });
    fs::write(&text, told.join("\n")).unwrap();
    let seen = shoal.json(["eval", "--text", &text, "--imatrix", &imatrix, "--json"], "");
    let perplexity = |model: &str| {
        let line = shoal.json(["eval", "--model", model, "--text", &text, "--json"], "");
        line["perplexity"].as_f64().unwrap()
    };
    assert_eq!(seen["perplexity"].as_f64(), Some(perplexity(&minnow)), "watching changes nothing");
    let written = |name: &str, more: &[&str]| {
        let output = path(name);
        let line = shoal.json([&["convert", &minnow, "--output", &output, "--json"], more].concat(), "");
        (output, line)
    };
    let (plain, line) = written("plain.gguf", &["--format", "q2_k"]);
    assert_eq!((&line["architecture"], &line["formats"]["q2_k"]), (&json!("llama"), &json!(56)), "{line}");
    let (weighed, _) = written("weighed.gguf", &["--format", "q2_k", "--imatrix", &imatrix]);
    let [float, plain_perplexity, weighed_perplexity] = [&minnow, &plain, &weighed].map(|m| perplexity(m));
    println!("minnow {float:.3}, q2_k {plain_perplexity:.3}, weighed {weighed_perplexity:.3}");
    assert!(float < weighed_perplexity && weighed_perplexity < plain_perplexity);

    let (mixed, _) = written("mixed.gguf", &["--format", "q4_k", "--tensor", "blk.*.ffn_down=q6_k"]);
    let (ours, source) = (Gguf::open(&mixed).unwrap(), Gguf::open(&minnow).unwrap());
    let format = |name: &str| ours.require(name).unwrap().format.name;
    assert_eq!(
        ["blk.3.ffn_down.weight", "blk.3.ffn_up.weight", "token_embd.weight"].map(format),
        ["q6_k", "q4_k", "q6_k"]
    );
    let norm = |gguf: &Gguf| gguf.require("blk.0.attn_norm.weight").unwrap().bytes.to_vec();
    assert_eq!(norm(&ours), norm(&source));
    for (key, value) in source.metadata().iter().filter(|(key, _)| *key != "general.file_type") {
        assert_eq!(content(&ours.metadata().get(key).unwrap()), content(&value), "{key}");
    }

    let refused = |more: &[&str]| {
        let output = path("never.gguf");
        let (_, why) = shoal.fails([&["convert", &minnow, "--output", &output], more].concat(), "");
        assert!(!Path::new(&output).exists());
        why
    };
    let text_arg = text.as_str();
    for (more, why) in [
        (&[][..], "--format"),
        (&["--format", "iq1_s"], "cannot write"),
        (&["--format", "q4_k", "--tensor", "attn_z=q8_0"], "attn_z"),
        (&["--format", "q4_k", "--tensor", "attn_q"], "ffn_down=q6_k"),
        (&["--format", "q4_k", "--imatrix", &minnow], "no importance matrix"),
        (&["--format", "q4_k", "--imatrix", text_arg], "no importance matrix"),
        (&["--format", "q8_0", "--imatrix", &imatrix], "takes an importance matrix into account"),
    ] {
        let said = refused(more);
        assert!(said.contains(why), "{more:?}: {said}");
    }
    let other = data("families/llama.gguf").to_str().unwrap().to_owned();
    let (_, why) = shoal.fails(
        ["convert", &other, "--format", "iq4_nl", "--output", &path("never.gguf"), "--imatrix", &imatrix],
        "",
    );
    assert!(why.contains("other shapes") || why.contains("another model"), "{why}");
}

/// A folder as publishers ship Qwen 3, with the weights of the fixture and a vocabulary that has yes and no.
fn qwen3_folder(folder: &Path) -> Gguf {
    let source = Gguf::open(data("families/qwen3.gguf")).unwrap();
    let number = |key: &str| source.metadata().u64(&format!("qwen3.{key}")).unwrap();
    let config = json!({"model_type": "qwen3", "hidden_act": "silu", "tie_word_embeddings": true,
        "hidden_size": number("embedding_length"), "num_hidden_layers": number("block_count"),
        "intermediate_size": number("feed_forward_length"), "head_dim": number("attention.key_length"),
        "num_attention_heads": number("attention.head_count"),
        "num_key_value_heads": number("attention.head_count_kv"), "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6, "rope_theta": 1e6, "eos_token_id": 334,
        "vocab_size": source.require("token_embd.weight").unwrap().rows()});
    let read = |name: &str| fs::read_to_string(data("hf/qwen3moe").join(name)).unwrap();
    let mut tokenizer: serde_json::Value = serde_json::from_str(&read("tokenizer.json")).unwrap();
    tokenizer["model"]["vocab"]["yes"] = json!(340);
    let names = [
        ("token_embd", "embed_tokens"),
        ("output_norm", "norm"),
        ("blk.", "layers."),
        ("attn_q_norm", "self_attn.q_norm"),
        ("attn_k_norm", "self_attn.k_norm"),
        ("attn_output", "self_attn.o_proj"),
        ("attn_norm", "input_layernorm"),
        ("ffn_norm", "post_attention_layernorm"),
        ("attn_q.", "self_attn.q_proj."),
        ("attn_k.", "self_attn.k_proj."),
        ("attn_v.", "self_attn.v_proj."),
        ("ffn_gate", "mlp.gate_proj"),
        ("ffn_up", "mlp.up_proj"),
        ("ffn_down", "mlp.down_proj"),
    ];
    let (mut header, mut bytes) = (serde_json::Map::new(), Vec::new());
    for info in source.tensors() {
        let name = names.iter().fold(info.name.to_string(), |name, (from, to)| name.replace(from, to));
        let begins = bytes.len();
        let weights = source.require(&info.name).unwrap().to_f32();
        weights.iter().for_each(|w| bytes.extend(w.to_le_bytes()));
        let shape: Vec<u64> = info.dims.iter().rev().copied().collect();
        let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [begins, bytes.len()]});
        header.insert(format!("model.{name}"), entry);
    }
    let header = serde_json::to_string(&header).unwrap();
    let model = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes].concat();
    fs::create_dir(folder).unwrap();
    fs::write(folder.join("model.safetensors"), model).unwrap();
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    fs::write(folder.join("tokenizer_config.json"), read("tokenizer_config.json")).unwrap();
    source
}

#[test]
fn a_reranker_has_the_rows_for_yes_and_no_once_more() {
    let shoal = Shoal::new();
    let (folder, output) = (shoal.home().join("Qwen3-Reranker"), shoal.home().join("ranks.gguf"));
    let source = qwen3_folder(&folder);
    let [folder, path] = [&folder, &output].map(|path| path.to_str().unwrap());
    let args = ["convert", folder, "--rank", "--format", "f16", "--output", path, "--json"];
    assert_eq!(shoal.json(args, "")["architecture"], "qwen3");
    let ranks = Gguf::open(&output).unwrap();
    assert_eq!(ranks.tensors().len(), source.tensors().len() + 1);
    let rows = ranks.require("cls.output.weight").unwrap();
    let table = source.require("token_embd.weight").unwrap();
    let no = serde_json::from_str::<serde_json::Value>(
        &fs::read_to_string(data("hf/qwen3moe/tokenizer.json")).unwrap(),
    );
    let no = no.unwrap()["model"]["vocab"]["no"].as_u64().unwrap() as usize;
    let (all, cols) = (table.to_f32(), table.cols());
    let wanted = [&all[340 * cols..341 * cols], &all[no * cols..(no + 1) * cols]].concat();
    assert_eq!((&rows.info.dims[..], rows.to_f32()), (&[cols as u64, 2][..], wanted));
    assert_eq!(ranks.metadata().u64("qwen3.pooling_type"), Some(4));
    let labels = ranks.metadata().get("qwen3.classifier.output_labels").unwrap();
    assert_eq!(content(&labels), ["yes", "no"]);

    let refused = |source: &str, says: &str| {
        let never = shoal.home().join("never.gguf");
        let (code, why) = shoal
            .fails(["convert", source, "--rank", "--format", "f16", "--output", never.to_str().unwrap()], "");
        assert!(code != 0 && why.contains(says) && !never.exists(), "{why}");
    };
    refused(data("hf/llama").to_str().unwrap(), "qwen3 is");
    refused(path, "--rank is for folders");
}
