use std::io::Cursor;

use super::*;

/// A file with a value of every type and three tensors.
fn sample() -> Writer {
    let mut writer = sample_metadata();
    writer
        .add_tensor_info("a", &[2, 3], &quant::F32)
        .add_tensor_info("b", &[32, 2], &quant::Q8_0)
        .add_tensor_info("c", &[5], &quant::F16);
    writer
}

fn sample_metadata() -> Writer {
    let mut writer = Writer::new();
    writer
        .add_str("general.architecture", "llama")
        .add_u32("u32", 7)
        .add_i32("i32", -7)
        .add_u64("u64", u64::MAX)
        .add_i64("i64", i64::MIN)
        .add_f32("f32", 0.5)
        .add_f64("f64", 0.25)
        .add_bool("bool", true)
        .add_strs("strings", &["", "a", "\u{e9}\u{4e16}"])
        .add_f32s("f32s", &[1.0, -2.0])
        .add_i32s("i32s", &[1, -2])
        .add_u32s("u32s", &[1, u32::MAX])
        .add_u8s("u8s", &[1, 255])
        .add_bools("bools", &[true, false]);
    writer
}

fn write(writer: Writer, tensors: &[&[u8]]) -> Vec<u8> {
    let mut out = writer.start(Cursor::new(Vec::new())).unwrap();
    tensors.iter().for_each(|bytes| out.tensor(bytes).unwrap());
    out.finish().unwrap().into_inner()
}

fn sample_bytes() -> Vec<u8> {
    write(sample(), &[&[1; 24], &[2; 68], &[3; 10]])
}

#[test]
fn what_is_written_is_read() {
    let gguf = Gguf::from_bytes(sample_bytes()).unwrap();
    let m = gguf.metadata();
    assert_eq!(m.architecture().unwrap(), "llama");
    assert_eq!((m.u64("u32"), m.i64("i32"), m.u64("i32")), (Some(7), Some(-7), None));
    assert_eq!((m.u64("u64"), m.i64("u64"), m.i64("i64")), (Some(u64::MAX), None, Some(i64::MIN)));
    assert_eq!((m.f32("f32"), m.f32("f64"), m.f32("u32")), (Some(0.5), Some(0.25), None));
    assert_eq!((m.bool("bool"), m.bool("u32"), m.u64("absent")), (Some(true), None, None));
    assert_eq!(m.strings("strings").unwrap().collect::<Vec<_>>(), ["", "a", "\u{e9}\u{4e16}"]);
    assert_eq!(m.strings("strings").unwrap().len(), 3);
    assert!(m.strings("f32s").is_none() && m.f32s("strings").is_none());
    assert_eq!(m.f32s("f32s").unwrap(), [1.0, -2.0]);
    assert_eq!((m.i32s("i32s").unwrap(), m.u64s("i32s")), (vec![1, -2], None));
    assert_eq!((m.u64s("u32s").unwrap(), m.i32s("u32s")), (vec![1, u64::from(u32::MAX)], None));
    assert_eq!(m.u64s("u8s").unwrap(), [1, 255]);
    assert_eq!(m.bools("bools").unwrap(), [true, false]);
    let keys: Vec<&str> = m.iter().map(|(key, _)| key).collect();
    assert_eq!(keys[..3], ["general.architecture", "u32", "i32"]);

    let b = gguf.require("b").unwrap();
    assert_eq!((b.rows(), b.cols(), b.format.name, b.bytes), (2, 32, "q8_0", &[2u8; 68][..]));
    assert_eq!(b.row(1).len(), 34);
    assert_eq!(gguf.require("a").unwrap().rows(), 3);
    assert_eq!(gguf.tensors().iter().map(|t| &*t.name).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert!(gguf.tensor("d").is_none());
    assert_eq!(gguf.require("d").unwrap_err().to_string(), "not supported: tensor d is missing");
}

#[test]
fn version_2_reads_like_version_3_and_others_are_refused() {
    let mut bytes = sample_bytes();
    bytes[4] = 2;
    assert_eq!(Gguf::from_bytes(bytes.clone()).unwrap().tensors().len(), 3);
    for (version, text) in
        [(1u32, "version 1"), (4, "version 4"), (3u32.swap_bytes(), "big-endian"), (0, "version 0")]
    {
        bytes[4..8].copy_from_slice(&version.to_le_bytes());
        let error = Gguf::from_bytes(bytes.clone()).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn a_file_appears_when_it_is_complete_and_can_be_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let mut writer = Writer::new();
    writer.set_alignment(4096).add_tensor_info("big", &[4096, 16], &quant::F32);
    let mut out = writer.create(&path).unwrap();
    let row: Vec<u8> = (0..4096u32).flat_map(|i| (i as f32).to_le_bytes()).collect();
    for _ in 0..16 {
        assert!(!path.exists());
        out.write(&row).unwrap();
    }
    out.finish().unwrap();
    let gguf = Gguf::open(&path).unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    assert_eq!((gguf.path(), gguf.data_start()), (Some(path.as_path()), 4096));
    gguf.forget("big");
    gguf.forget("absent");
    gguf.forget_range(0..u64::MAX);
    assert_eq!(gguf.require("big").unwrap().row(15), &row[..]);
}

#[test]
fn an_unfinished_file_is_an_error() {
    let mut out = sample().start(Cursor::new(Vec::new())).unwrap();
    assert!(out.tensor(&[0; 23]).is_err());
    out.tensor(&[0; 24]).unwrap();
    out.write(&[0; 60]).unwrap();
    assert!(out.write(&[0; 9]).is_err());
    assert!(out.tensor(&[0; 68]).is_err());
    assert!(out.finish().is_err());

    let dir = tempfile::tempdir().unwrap();
    let mut out = sample().create(dir.path().join("model.gguf")).unwrap();
    out.tensor(&[0; 24]).unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    assert!(out.finish().is_err());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn an_open_file_is_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Gguf>();
}

#[test]
fn the_writer_refuses_what_the_reader_would() {
    let refused = |change: for<'a> fn(&'a mut Writer) -> &'a mut Writer| {
        let mut writer = sample();
        change(&mut writer);
        writer.start(Cursor::new(Vec::new())).is_err()
    };
    assert!(refused(|w| w.add_u32("u32", 1)));
    assert!(refused(|w| w.add_tensor_info("a", &[1], &quant::F32)));
    assert!(refused(|w| w.add_tensor_info("d", &[33], &quant::Q8_0)));
    assert!(refused(|w| w.add_tensor_info("d", &[0], &quant::F32)));
    assert!(refused(|w| w.add_tensor_info("d", &[1; 5], &quant::F32)));
    assert!(refused(|w| w.add_str("long", &"x".repeat(1 << 20 | 1))));
    assert!(refused(|w| w.set_alignment(12)));
    assert!(refused(|w| w.add_u32("", 1)));
    assert!(!refused(|w| w.add_u32("ok", 2)));
}

#[test]
fn only_files_are_opened() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(Gguf::open(dir.path()), Err(Error::Invalid { .. })));
    assert!(matches!(Gguf::open(dir.path().join("absent")), Err(Error::Io { .. })));
    let empty = dir.path().join("empty");
    fs::write(&empty, []).unwrap();
    assert!(matches!(Gguf::open(&empty), Err(Error::Malformed { .. })));
}

/// The sample in three parts: the first has the metadata and no tensor, the others have one and two.
fn write_parts(folder: &Path) -> Vec<PathBuf> {
    let tensors: [(&str, &[u64], &'static Format, &[u8]); 3] = [
        ("a", &[2, 3], &quant::F32, &[1; 24]),
        ("b", &[32, 2], &quant::Q8_0, &[2; 68]),
        ("c", &[5], &quant::F16, &[3; 10]),
    ];
    let path = |part: usize| folder.join(format!("big-{:05}-of-00003.gguf", part + 1));
    for (part, own) in [&tensors[..0], &tensors[..1], &tensors[1..]].into_iter().enumerate() {
        let mut writer = if part == 0 { sample_metadata() } else { Writer::new() };
        writer.add_u32("split.no", part as u32).add_u32("split.count", 3).add_i32("split.tensors.count", 3);
        for (name, dims, format, _) in own {
            writer.add_tensor_info(name, dims, format);
        }
        let bytes: Vec<&[u8]> = own.iter().map(|tensor| tensor.3).collect();
        fs::write(path(part), write(writer, &bytes)).unwrap();
    }
    (0..3).map(path).collect()
}

#[test]
fn parts_open_as_one_by_the_name_of_any_and_join_to_the_whole_file() {
    let folder = tempfile::tempdir().unwrap();
    let paths = write_parts(folder.path());
    for path in &paths {
        let gguf = Gguf::open(path).unwrap();
        assert_eq!((gguf.parts(), gguf.metadata().u64("u32"), gguf.tensors().len()), (3, Some(7), 3));
        for (name, bytes) in [("a", &[1u8; 24][..]), ("b", &[2; 68]), ("c", &[3; 10])] {
            assert_eq!(gguf.require(name).unwrap().bytes, bytes, "{name}");
        }
        let whole: u64 = paths.iter().map(|path| fs::metadata(path).unwrap().len()).sum();
        assert_eq!(gguf.file_len(), whole);
        gguf.forget_range(0..u64::MAX);
        assert_eq!(gguf.require("c").unwrap().bytes, [3; 10]);
        let joined = tempfile::NamedTempFile::new().unwrap();
        let len = split::join(&gguf, joined.as_file(), &|done, total| assert!(done <= total)).unwrap();
        let joined = fs::read(joined.path()).unwrap();
        assert!(joined.len() as u64 == len && joined == sample_bytes(), "as if it had never been split");
    }
}

#[test]
fn parts_that_are_missing_or_do_not_belong_together_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let paths = write_parts(folder.path());
    let second = fs::read(&paths[1]).unwrap();
    fs::copy(&paths[2], &paths[1]).unwrap();
    let refused = || Gguf::open(&paths[0]).unwrap_err().to_string();
    assert!(refused().contains("part 2 of 3: split.no"), "{}", refused());
    fs::write(&paths[1], &second[..second.len() - 64]).unwrap();
    assert!(refused().contains("part 2 of 3"), "{}", refused());
    fs::remove_file(&paths[1]).unwrap();
    fs::remove_file(&paths[2]).unwrap();
    let error = refused();
    assert!(error.contains("big-00002-of-00003.gguf, big-00003-of-00003.gguf"), "{error}");
    let mut wrong = sample();
    wrong.add_u32("split.no", 1).add_u32("split.count", 3).add_i32("split.tensors.count", 3);
    fs::write(&paths[1], write(wrong, &[&[1; 24], &[2; 68], &[3; 10]])).unwrap();
    fs::write(&paths[2], &second).unwrap();
    assert!(refused().contains("part 3 of 3: split.no"), "{}", refused());
}
