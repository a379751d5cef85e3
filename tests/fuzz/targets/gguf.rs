//! Any bytes as a GGUF file: reading must end in a file or an error, everything that was accepted must be readable,
//! and what the writer makes of it must read back the same.
#![no_main]

use std::io::Cursor;

use libfuzzer_sys::{Corpus, fuzz_target};
use shard::{
    gguf::{Array, Gguf, Kind, Metadata, Value, Writer},
    quant::by_type,
};

/// Weights of the tensors that are decoded: enough for many blocks of every format.
const SMALL: u64 = 1 << 14;

fuzz_target!(|bytes: &[u8]| -> Corpus {
    let Ok(gguf) = Gguf::from_bytes(bytes.to_vec()) else { return Corpus::Keep };
    metadata(gguf.metadata(), bytes.len());
    tensors(&gguf);
    rewrite(&gguf);
    Corpus::Keep
});

/// Every pair can be found by its key and read as whatever it is and as everything it is not.
fn metadata(metadata: &Metadata, file_len: usize) {
    assert_eq!(metadata.iter().len(), metadata.len());
    for (key, value) in metadata.iter() {
        let found = metadata.get(key).expect("a key that was listed");
        assert_eq!(format!("{found:?}"), format!("{value:?}"), "{key:?}");
        let integer = value.as_i128();
        assert_eq!(metadata.u64(key).map(i128::from), integer.filter(|n| u64::try_from(*n).is_ok()));
        assert_eq!(metadata.i64(key).map(i128::from), integer.filter(|n| i64::try_from(*n).is_ok()));
        assert_eq!(metadata.str(key).is_some(), matches!(value, Value::String(_)));
        assert_eq!(metadata.bool(key).is_some(), matches!(value, Value::Bool(_)));
        assert_eq!(metadata.f32(key).is_some(), matches!(value, Value::F32(_) | Value::F64(_)));
        match value {
            Value::Array(array) => elements(metadata, key, array, file_len),
            _ => assert!(metadata.array(key).is_none() && metadata.strings(key).is_none()),
        }
    }
    assert!(metadata.get("no key of any file, longer than a name \u{0}").is_none());
    let _ = metadata.architecture();
}

fn elements(metadata: &Metadata, key: &str, array: Array<'_>, file_len: usize) {
    let len = array.len();
    let element = array.element();
    if let Some(strings) = metadata.strings(key) {
        assert_eq!(element, Kind::String);
        assert_eq!(strings.clone().count(), len, "{key:?}");
        assert!(strings.map(|text| text.len() + 8).sum::<usize>() <= file_len);
    }
    // An empty list is a list of anything but strings.
    let empty = len == 0 && element != Kind::String;
    let float = matches!(element, Kind::F32 | Kind::F64);
    assert_eq!(metadata.bools(key).map(|list| list.len()), (element == Kind::Bool || empty).then_some(len));
    assert_eq!(metadata.f32s(key).map(|list| list.len()), (float || empty).then_some(len));
    for integers in [metadata.i32s(key).map(|list| list.len()), metadata.u64s(key).map(|list| list.len())] {
        match integers {
            Some(found) => assert_eq!(found, len, "{key:?}"),
            // One may be out of range.
            None => assert!(!empty, "{key:?}"),
        }
    }
}

/// Every tensor lies in the file, can be found by its name and its rows make up its bytes.
fn tensors(gguf: &Gguf) {
    for info in gguf.tensors() {
        assert!(info.offset >= gguf.data_start() && info.offset + info.len <= gguf.file_len());
        assert_eq!(gguf.info(&info.name).map(|found| found.offset), Some(info.offset));
        gguf.forget(&info.name);
        let Some(tensor) = gguf.tensor(&info.name) else {
            assert!(by_type(info.ggml_type).is_none(), "{info:?}");
            assert!(gguf.require(&info.name).is_err());
            continue;
        };
        assert_eq!((tensor.cols() * tensor.rows()) as u64, info.elements());
        assert_eq!(tensor.row(tensor.rows() - 1).as_ptr_range().end, tensor.bytes.as_ptr_range().end);
        if info.elements() <= SMALL {
            assert_eq!(tensor.to_f32().len() as u64, info.elements());
        }
    }
}

/// Writes what the writer can express and compares what comes back.
fn rewrite(gguf: &Gguf) {
    let mut writer = Writer::new();
    let mut pairs = 0;
    for (key, value) in gguf.metadata().iter() {
        pairs += usize::from(write_pair(&mut writer, gguf.metadata(), key, &value));
    }
    let known: Vec<_> = gguf.tensors().iter().filter_map(|info| gguf.tensor(&info.name)).collect();
    for tensor in &known {
        writer.add_tensor_info(&tensor.info.name, &tensor.info.dims, tensor.format);
    }
    let mut out = writer.start(Cursor::new(Vec::new())).expect("what was read can be written");
    for tensor in &known {
        // In two parts where there are two.
        let (head, tail) = tensor.bytes.split_at(tensor.bytes.len() / 2);
        [head, tail, tensor.tail()]
            .iter()
            .filter(|part| !part.is_empty())
            .for_each(|part| out.write(part).expect("in order"));
    }
    let bytes = out.finish().expect("all tensors were written").into_inner();
    let again = Gguf::from_bytes(bytes).expect("what was written can be read");
    assert_eq!((again.metadata().len(), again.tensors().len()), (pairs, known.len()));
    for (tensor, info) in known.iter().zip(again.tensors()) {
        let same = again.tensor(&info.name).expect("a known type");
        assert_eq!((&tensor.info.name, &tensor.info.dims), (&info.name, &info.dims));
        assert_eq!((tensor.format, tensor.bytes, tensor.tail()), (same.format, same.bytes, same.tail()));
    }
    for (key, value) in again.metadata().iter() {
        let before = gguf.metadata().get(key).expect("a key that was written");
        match (&before, &value) {
            // The views behind the numbers end with the file, so only what they show is compared.
            (Value::Array(a), Value::Array(b)) => {
                assert_eq!((a.element(), a.len()), (b.element(), b.len()), "{key:?}");
                let strings =
                    |metadata: &Metadata| metadata.strings(key).map(|list| list.map(str::to_owned).collect());
                assert_eq!(
                    strings(gguf.metadata()),
                    strings(again.metadata()) as Option<Vec<String>>,
                    "{key:?}"
                );
            }
            _ => assert_eq!(format!("{before:?}"), format!("{value:?}"), "{key:?}"),
        }
    }
}

/// Adds a pair if the writer has a call for its type.
fn write_pair(writer: &mut Writer, metadata: &Metadata, key: &str, value: &Value<'_>) -> bool {
    match *value {
        Value::U32(alignment) if key == "general.alignment" => writer.set_alignment(alignment),
        Value::U32(n) => writer.add_u32(key, n),
        Value::I32(n) => writer.add_i32(key, n),
        Value::U64(n) => writer.add_u64(key, n),
        Value::I64(n) => writer.add_i64(key, n),
        Value::F32(x) => writer.add_f32(key, x),
        Value::F64(x) => writer.add_f64(key, x),
        Value::Bool(truth) => writer.add_bool(key, truth),
        Value::String(text) => writer.add_str(key, text),
        Value::Array(array) => match array.element() {
            Kind::String => {
                writer.add_strs(key, &metadata.strings(key).into_iter().flatten().collect::<Vec<_>>())
            }
            Kind::F32 => writer.add_f32s(key, &metadata.f32s(key).unwrap_or_default()),
            Kind::I32 => writer.add_i32s(key, &metadata.i32s(key).unwrap_or_default()),
            Kind::Bool => writer.add_bools(key, &metadata.bools(key).unwrap_or_default()),
            _ => return false,
        },
        _ => return false,
    };
    true
}
