//! Malformed and hostile GGUF files: none may panic, none may make the reader allocate more than twice the header
//! (plus 1 MiB), and what is refused is refused by the name of a field.
//!
//! [`Spec`] is a GGUF file in pieces, written by code that shares nothing with the crate's own writer. From one valid
//! file the tests derive others: every number replaced by extreme ones, every length cut, bytes flipped at random,
//! and by hand those that broke other readers.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    fs::File,
    io::{Seek, SeekFrom, Write},
    ops::Range,
    panic::{self, AssertUnwindSafe},
};

use proptest::prelude::*;
use shard::{
    Error,
    gguf::{Gguf, Value},
};

/// Counts the bytes that each thread has allocated and the most it ever had.
struct Counting;

thread_local! {
    static NOW: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(change: isize) {
    let now = NOW.get() + change;
    NOW.set(now);
    PEAK.set(PEAK.get().max(now));
}

// SAFETY: every call is passed to the system's allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes that `work` held at a time beyond what was there before.
fn peak<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = NOW.get();
    PEAK.set(before);
    let result = work();
    (result, usize::try_from(PEAK.get() - before).unwrap())
}

const MIB: usize = 1 << 20;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// The name of a field and where it is in the file.
type Field = (String, Range<usize>);

/// A file in pieces, each with the name of the field it is.
#[derive(Clone)]
struct Spec {
    pieces: Vec<(String, Vec<u8>)>,
    pairs: u64,
    tensors: u64,
    alignment: usize,
    data: usize,
}

impl Spec {
    fn empty() -> Self {
        Self { pieces: Vec::new(), pairs: 0, tensors: 0, alignment: 32, data: 0 }
    }

    fn put(mut self, field: &str, bytes: impl Into<Vec<u8>>) -> Self {
        self.pieces.push((field.to_owned(), bytes.into()));
        self
    }

    fn text(self, field: &str, text: &[u8]) -> Self {
        self.put(&format!("{field} length"), (text.len() as u64).to_le_bytes()).put(field, text)
    }

    fn pair(mut self, key: &str, kind: u32) -> Self {
        self.pairs += 1;
        self.text(&format!("{key} key"), key.as_bytes()).put(&format!("{key} type"), kind.to_le_bytes())
    }

    fn scalar(self, key: &str, kind: u32, value: &[u8]) -> Self {
        self.pair(key, kind).put(key, value)
    }

    fn string(self, key: &str, value: &[u8]) -> Self {
        self.pair(key, STRING).text(key, value)
    }

    fn array(self, key: &str, element: u32, len: u64) -> Self {
        self.pair(key, ARRAY)
            .put(&format!("{key} element"), element.to_le_bytes())
            .put(&format!("{key} len"), len.to_le_bytes())
    }

    fn tensor(mut self, name: &str, dims: &[u64], kind: u32, offset: u64) -> Self {
        self.tensors += 1;
        self = self.text(&format!("{name} name"), name.as_bytes());
        self = self.put(&format!("{name} dims"), (dims.len() as u32).to_le_bytes());
        for (axis, dim) in dims.iter().enumerate() {
            self = self.put(&format!("{name} dim {axis}"), dim.to_le_bytes());
        }
        self.put(&format!("{name} type"), kind.to_le_bytes())
            .put(&format!("{name} offset"), offset.to_le_bytes())
    }

    fn data(mut self, len: usize) -> Self {
        self.data = len;
        self
    }

    /// The file, its fields and the length of its header.
    fn build(&self) -> (Vec<u8>, Vec<Field>, usize) {
        let head = [
            ("magic", b"GGUF".to_vec()),
            ("version", 3u32.to_le_bytes().to_vec()),
            ("tensor count", self.tensors.to_le_bytes().to_vec()),
            ("pair count", self.pairs.to_le_bytes().to_vec()),
        ];
        let head = head.into_iter().map(|(field, bytes)| (field.to_owned(), bytes));
        let (mut file, mut fields) = (Vec::new(), Vec::new());
        for (field, bytes) in head.chain(self.pieces.iter().cloned()) {
            let at = file.len();
            file.extend(bytes);
            fields.push((field, at..file.len()));
        }
        let header = file.len();
        if self.data > 0 {
            file.resize(header.next_multiple_of(self.alignment) + self.data, 0x5a);
        }
        (file, fields, header)
    }

    fn bytes(&self) -> Vec<u8> {
        self.build().0
    }

    /// The file with the bytes of `field` replaced by as many others.
    fn with(&self, field: &str, bytes: &[u8]) -> Vec<u8> {
        let (mut file, fields, _) = self.build();
        let (_, range) =
            fields.iter().find(|(name, _)| name == field).unwrap_or_else(|| panic!("no {field}"));
        file[range.clone()].copy_from_slice(bytes);
        file
    }
}

/// A small file with a value of every type and tensors of three formats.
fn valid() -> Spec {
    Spec::empty()
        .string("general.architecture", b"llama")
        .scalar("general.alignment", 4, &32u32.to_le_bytes())
        .scalar("u8", 0, &[1])
        .scalar("i8", 1, &[255])
        .scalar("u16", 2, &[1, 2])
        .scalar("i16", 3, &[1, 2])
        .scalar("i32", 5, &[1, 2, 3, 4])
        .scalar("f32", 6, &1.5f32.to_le_bytes())
        .scalar("bool", 7, &[1])
        .scalar("u64", 10, &7u64.to_le_bytes())
        .scalar("i64", 11, &7u64.to_le_bytes())
        .scalar("f64", 12, &1.5f64.to_le_bytes())
        .array("tokenizer.ggml.tokens", STRING, 3)
        .text("token 0", b"<s>")
        .text("token 1", b"")
        .text("token 2", "\u{4e16}".as_bytes())
        .array("tokenizer.ggml.scores", 6, 3)
        .put("scores", [0; 12])
        .array("tokenizer.ggml.token_type", 5, 3)
        .put("types", [1, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0])
        .array("bools", 7, 2)
        .put("truths", [0, 1])
        .tensor("token_embd.weight", &[32, 3], 8, 0)
        .tensor("blk.0.attn_q.weight", &[256, 2], 12, 128)
        .tensor("output_norm.weight", &[8], 0, 416)
        .data(448)
}

/// Reads everything that an accepted file offers.
fn walk(gguf: &Gguf) {
    for (key, value) in gguf.metadata().iter() {
        let m = gguf.metadata();
        assert_eq!(m.get(key).map(|v| format!("{v:?}")), Some(format!("{value:?}")), "{key:?}");
        let _ = (m.str(key), m.u64(key), m.i64(key), m.f32(key), m.bool(key));
        let _ = (m.f32s(key), m.i32s(key), m.u64s(key), m.bools(key));
        if let (Some(strings), Value::Array(array)) = (m.strings(key), value) {
            assert_eq!(strings.count(), array.len());
        }
    }
    for info in gguf.tensors() {
        assert!(info.offset + info.len <= gguf.file_len());
        if let Some(tensor) = gguf.tensor(&info.name) {
            assert_eq!(tensor.to_f32().len() as u64, info.elements());
            assert_eq!(tensor.row(tensor.rows() - 1).len() * tensor.rows(), tensor.bytes.len());
        }
        gguf.forget(&info.name);
    }
}

/// Opens a file and checks what holds for all of them; returns the error's text if it was refused.
fn open(what: &str, file: Vec<u8>, header: usize) -> Option<String> {
    let (opened, held) = peak(|| panic::catch_unwind(AssertUnwindSafe(|| Gguf::from_bytes(file))));
    assert!(held <= 2 * header + MIB, "{what}: {held} bytes for a header of {header}");
    let opened = opened.unwrap_or_else(|_| panic!("{what}: opening panicked"));
    match opened {
        Ok(gguf) => {
            panic::catch_unwind(AssertUnwindSafe(|| walk(&gguf)))
                .unwrap_or_else(|_| panic!("{what}: reading panicked"));
            None
        }
        Err(error) => {
            match &error {
                Error::Malformed { field, why } => assert!(!field.is_empty() && !why.is_empty(), "{what}"),
                Error::Unsupported { what: which } => assert!(which.contains("GGUF"), "{what}: {which}"),
                other => panic!("{what}: {other:?}"),
            }
            Some(error.to_string())
        }
    }
}

/// Opens a file that is held against its own length.
fn refused(what: &str, file: Vec<u8>) -> Option<String> {
    let len = file.len();
    open(what, file, len)
}

#[test]
fn the_valid_file_is_valid() {
    let (file, _, header) = valid().build();
    let gguf = Gguf::from_bytes(file).unwrap();
    assert_eq!(gguf.header_len(), header as u64);
    assert_eq!(gguf.metadata().len(), 16);
    assert_eq!(gguf.require("blk.0.attn_q.weight").unwrap().rows(), 2);
    let tokens: Vec<&str> = gguf.metadata().strings("tokenizer.ggml.tokens").unwrap().collect();
    assert_eq!(tokens, ["<s>", "", "\u{4e16}"]);
    walk(&gguf);
}

#[test]
fn every_number_of_the_header_at_its_extremes() {
    let spec = valid();
    let (file, fields, header) = spec.build();
    let (mut files, mut errors) = (0, 0);
    for (field, range) in fields {
        let old = file[range.clone()].iter().rev().fold(0u64, |number, &byte| number << 8 | u64::from(byte));
        let near = [old.wrapping_sub(1), old.wrapping_add(1), old.wrapping_mul(2), old.swap_bytes()];
        let powers = [3, 8, 16, 20, 26, 31, 32, 40, 48, 58, 59, 60, 61, 62, 63].map(|bit| 1u64 << bit);
        let around = powers.iter().flat_map(|&p| [p - 1, p, p + 1]);
        let values = (0..14).chain([31, 33, 4097, 65537, u64::MAX - 31, u64::MAX]).chain(near).chain(around);
        for value in values.filter(|_| range.len() <= 8) {
            let what = format!("{field} {old} -> {value}");
            let mut file = file.clone();
            file[range.clone()].copy_from_slice(&value.to_le_bytes()[..range.len()]);
            files += 1;
            errors += usize::from(open(&what, file, header).is_some());
        }
    }
    println!("{files} files, {errors} refused");
    assert!(files > 3_000 && errors > files / 2);
}

#[test]
fn truncated_anywhere() {
    let (file, _, header) = valid().build();
    for len in 0..file.len() {
        let error = open(&format!("cut at {len}"), file[..len].to_vec(), header);
        assert!(error.is_some(), "cut at {len}");
    }
    let longer = [&file[..], &[0; 100]].concat();
    assert_eq!(open("longer", longer, header), None);
}

#[test]
fn files_that_broke_readers() {
    let v = valid();
    let u32s = |value: u32| value.to_le_bytes();
    let u64s = |value: u64| value.to_le_bytes();
    let nested = (0..100_000).fold(Vec::new(), |mut bytes, _| {
        bytes.extend(ARRAY.to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
        bytes
    });
    let named = |len: usize| Spec::empty().tensor(&"x".repeat(len), &[1], 0, 0).data(32).bytes();
    let embd = "tensor \"token_embd.weight\"";
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("other magic", v.with("magic", b"GGML"), "magic"),
        ("version 1", v.with("version", &u32s(1)), "GGUF version 1"),
        ("big endian", v.with("version", &u32s(3 << 24)), "big-endian GGUF"),
        ("many tensors", v.with("tensor count", &u64s(65_537)), "tensor count: 65537 is above"),
        ("all tensors", v.with("tensor count", &u64s(u64::MAX)), "tensor count"),
        ("tensors beyond the file", v.with("tensor count", &u64s(65_536)), "tensor count: 65536 do not fit"),
        ("many pairs", v.with("pair count", &u64s(4_097)), "metadata count: 4097 is above"),
        ("all pairs", v.with("pair count", &u64s(u64::MAX)), "metadata count"),
        ("pairs beyond the file", v.with("pair count", &u64s(4_000)), "metadata count: 4000 do not fit"),
        ("alignment 0", v.with("general.alignment", &u32s(0)), "general.alignment: 0"),
        ("alignment 1", v.with("general.alignment", &u32s(1)), "general.alignment: 1"),
        ("alignment 48", v.with("general.alignment", &u32s(48)), "general.alignment: 48"),
        ("alignment 2^17", v.with("general.alignment", &u32s(1 << 17)), "general.alignment: 131072"),
        ("alignment 2^31", v.with("general.alignment", &u32s(1 << 31)), "general.alignment"),
        ("alignment i32", v.with("general.alignment type", &u32s(5)), "general.alignment: its type is I32"),
        ("alignment unlike the data", v.with("general.alignment", &u32s(4096)), "offset"),
        ("dims that wrap to 0 bytes", v.with("token_embd.weight dim 1", &u64s((1 << 59) + 1)), embd),
        ("dims that wrap to 32", v.with("blk.0.attn_q.weight dim 1", &u64s((1 << 56) + 1)), "attn_q"),
        ("dim 0", v.with("token_embd.weight dim 1", &u64s(0)), "\"token_embd.weight\": dimension 1: it is 0"),
        ("part of a block", v.with("token_embd.weight dim 0", &u64s(48)), "multiple of q8_0's block"),
        ("no dims", v.with("token_embd.weight dims", &u32s(0)), "\"token_embd.weight\": dimensions: 0"),
        ("5 dims", v.with("token_embd.weight dims", &u32s(5)), "\"token_embd.weight\": dimensions: 5"),
        ("all dims", v.with("token_embd.weight dims", &u32s(u32::MAX)), "\"token_embd.weight\": dimensions"),
        ("odd offset", v.with("token_embd.weight offset", &u64s(8)), "not a multiple of the alignment"),
        ("offset that wraps", v.with("token_embd.weight offset", &u64s(u64::MAX - 31)), embd),
        (
            "offset at the end",
            v.with("output_norm.weight offset", &u64s(448)),
            "\"output_norm.weight\": offset",
        ),
        ("same offset", v.with("blk.0.attn_q.weight offset", &u64s(0)), "overlaps"),
        (
            "overlap by a block",
            v.with("blk.0.attn_q.weight offset", &u64s(96)),
            "overlaps \"token_embd.weight\"",
        ),
        ("unknown type inside", v.with("output_norm.weight type", &u32s(99)), ""),
        ("key type 13", v.with("u8 type", &u32s(13)), "metadata \"u8\": type: 13 is unknown"),
        ("key type 2^32-1", v.with("u8 type", &u32s(u32::MAX)), "metadata \"u8\": type"),
        ("bool 2", v.with("bool", &[2]), "metadata \"bool\""),
        ("bools 255", v.with("truths", &[0, 255]), "metadata \"bools\""),
        (
            "array of arrays",
            v.with("bools element", &u32s(ARRAY)),
            "metadata \"bools\": array: arrays of arrays",
        ),
        ("array of 77", v.with("bools element", &u32s(77)), "metadata \"bools\": array: element type 77"),
        (
            "long array",
            v.with("bools len", &u64s((1 << 20) + 1)),
            "\"bools\": array: its length 1048577 is above",
        ),
        ("array beyond the file", v.with("bools len", &u64s(1 << 20)), "metadata \"bools\": the file ends"),
        ("array that wraps", v.with("tokenizer.ggml.scores len", &u64s(1 << 62)), "tokenizer.ggml.scores"),
        ("string that wraps", v.with("general.architecture length", &u64s(u64::MAX)), "general.architecture"),
        (
            "long string",
            v.with("general.architecture length", &u64s((1 << 20) + 1)),
            "length 1048577 is above",
        ),
        (
            "no UTF-8",
            v.with("general.architecture", b"\xffaaaa"),
            "\"general.architecture\": it is not UTF-8",
        ),
        (
            "token no UTF-8",
            v.with("token 0", b"\xc3\x28\x00"),
            "tokenizer.ggml.tokens\": string 0: it is not",
        ),
        ("key no UTF-8", v.with("u8 key", b"\xff\xff"), "metadata key 2: it is not UTF-8"),
        ("name no UTF-8", v.with("token_embd.weight name", &[0xff; 17]), "tensor name 0: it is not UTF-8"),
        ("empty key", Spec::empty().scalar("", 0, &[1]).data(8).bytes(), "metadata key 0: it is empty"),
        (
            "long key",
            Spec::empty().scalar(&"k".repeat(257), 0, &[1]).bytes(),
            "metadata key 0: its length 257",
        ),
        ("empty name", named(0), "tensor name 0: it is empty"),
        ("long name", named(257), "tensor name 0: its length 257"),
        ("same key", v.bytes_with_key_twice(), "metadata key \"u8\": it occurs twice"),
        ("same tensor", tensor_twice(), "tensor \"a\": name: it occurs twice"),
        ("nested arrays", Spec::empty().pair("n", ARRAY).put("", nested).bytes(), "arrays of arrays"),
        ("tokens are numbers", known("tokenizer.ggml.tokens"), "tokenizer.ggml.tokens\": type: U32"),
        ("template is a number", known("tokenizer.chat_template"), "tokenizer.chat_template\": type: U32"),
        ("architecture is a number", known("general.architecture"), "general.architecture\": type: U32"),
        ("scores are a number", known("tokenizer.ggml.scores"), "tokenizer.ggml.scores\": type: U32"),
        ("add_bos is a number", known("tokenizer.ggml.add_bos_token"), "add_bos_token\": type: U32"),
    ];
    for (what, file, wanted) in cases {
        match refused(what, file) {
            Some(error) => assert!(!wanted.is_empty() && error.contains(wanted), "{what}: {error}"),
            None => assert_eq!(wanted, "", "{what} was accepted"),
        }
    }
}

fn known(key: &str) -> Vec<u8> {
    Spec::empty().scalar(key, 4, &[1, 0, 0, 0]).bytes()
}

fn tensor_twice() -> Vec<u8> {
    Spec::empty().tensor("a", &[1], 0, 0).tensor("b", &[1], 0, 32).tensor("a", &[1], 0, 64).data(96).bytes()
}

impl Spec {
    /// The file with one more pair in front that has the key of a later one.
    fn bytes_with_key_twice(&self) -> Vec<u8> {
        let mut twice = Self::empty().scalar("u8", 0, &[2]);
        twice.pieces.extend(self.pieces.iter().cloned());
        Self { pieces: twice.pieces, pairs: self.pairs + 1, ..self.clone() }.bytes()
    }
}

#[test]
fn caps_are_reachable_and_memory_stays_below_twice_the_header() {
    let tokens = (0..1u64 << 20).fold(Vec::new(), |mut bytes, _| {
        bytes.extend(1u64.to_le_bytes());
        bytes.push(b'a');
        bytes
    });
    let vocabulary = Spec::empty().array("tokenizer.ggml.tokens", STRING, 1 << 20).put("", tokens);
    let pairs = (0..4096u32).fold(Spec::empty(), |spec, i| spec.scalar(&format!("{i}"), 0, &[1]));
    let tensors =
        (0..65_536u64).fold(Spec::empty(), |spec, i| spec.tensor(&format!("{i:x}"), &[1], 0, 32 * i));
    let tensors = tensors.data(32 * 65_536);
    for (what, spec) in [("vocabulary", vocabulary), ("pairs", pairs), ("tensors", tensors)] {
        let (file, _, header) = spec.build();
        let (gguf, held) = peak(|| Gguf::from_bytes(file).unwrap());
        println!("{what}: {held} bytes for a header of {header}");
        assert!(held <= 2 * header + MIB, "{what}: {held} bytes for a header of {header}");
        if what == "vocabulary" {
            assert_eq!(
                gguf.metadata().strings("tokenizer.ggml.tokens").unwrap().filter(|&t| t == "a").count(),
                1 << 20
            );
        }
    }
}

#[test]
fn arrays_of_64_mib_do_not_expand() {
    for (element, size) in [(7u32, 1u64), (0, 1), (10, 8)] {
        let len = (64 << 20) / size;
        let head = Spec::empty().array("x", element, len).bytes();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&head).unwrap();
        file.as_file().set_len(head.len() as u64 + (64 << 20)).unwrap();
        let (opened, held) = peak(|| Gguf::open(file.path()));
        let error = opened.unwrap_err().to_string();
        assert!(error.contains("metadata \"x\": array") && held < MIB, "{held} bytes: {error}");
    }
}

#[test]
fn a_header_ends_at_64_mib() {
    let mut file = tempfile::tempfile().unwrap();
    let text = (1u64 << 20).to_le_bytes();
    let mut header = Vec::new();
    header.extend(b"GGUF");
    header.extend(3u32.to_le_bytes());
    header.extend(0u64.to_le_bytes());
    header.extend(70u64.to_le_bytes());
    file.write_all(&header).unwrap();
    for i in 0..70u64 {
        file.write_all(&[&2u64.to_le_bytes()[..], &[b'0' + (i / 10) as u8, b'0' + (i % 10) as u8]].concat())
            .unwrap();
        file.write_all(&[&STRING.to_le_bytes()[..], &text].concat()).unwrap();
        file.seek(SeekFrom::Current(1 << 20)).unwrap();
    }
    file.write_all(&[0; 64]).unwrap();
    let copy = tempfile::NamedTempFile::new().unwrap();
    file.rewind().unwrap();
    std::io::copy(&mut file, &mut File::create(copy.path()).unwrap()).unwrap();
    let (opened, held) = peak(|| Gguf::open(copy.path()));
    let error = opened.unwrap_err().to_string();
    assert!(
        error.contains("the header is longer than 67108864 bytes") && held < MIB,
        "{held} bytes: {error}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn flipped_bytes(flips in prop::collection::vec((0usize..2048, 1u8..), 1..6)) {
        let (mut file, _, header) = valid().build();
        for (at, flip) in &flips {
            let at = at % file.len();
            file[at] ^= flip;
        }
        open(&format!("{flips:?}"), file, header);
    }

    #[test]
    fn moved_pieces(from in 0usize..1000, to in 0usize..1000, len in 1usize..64) {
        let (mut file, _, header) = valid().build();
        let (from, to) = (from % (file.len() - 64), to % (file.len() - 64));
        file.copy_within(from..from + len, to);
        open("moved", file, header);
    }

    #[test]
    fn noise_after_the_magic(noise in prop::collection::vec(any::<u8>(), 0..300), pairs in 0u8..4, tensors in 0u8..4) {
        let head = [&b"GGUF\x03\0\0\0"[..], &[tensors, 0, 0, 0, 0, 0, 0, 0][..], &[pairs, 0, 0, 0, 0, 0, 0, 0]].concat();
        refused("noise", [head, noise].concat());
    }
}
