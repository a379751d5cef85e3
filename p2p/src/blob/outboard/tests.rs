use super::*;
use crate::blob::testing::{noise, written};

const G: usize = GROUP_BYTES as usize;

fn made(bytes: usize) -> (Vec<u8>, Outboard, Vec<u8>) {
    let data = noise(bytes, 1);
    let file = written(&data);
    let (tree, encoded) = Outboard::make(file.path(), &mut |_| true).unwrap();
    (data, tree, encoded)
}

#[test]
fn the_id_is_the_blake3_of_the_whole_file_and_every_group_checks() {
    for bytes in [1, 1023, G - 1, G, G + 1, 2 * G, 3 * G + 5, 7 * G, 8 * G, 9 * G + 1, 33 * G + 4097] {
        let (data, tree, encoded) = made(bytes);
        assert_eq!(tree.id().as_bytes(), blake3::hash(&data).as_bytes(), "{bytes}");
        assert_eq!(encoded.len() as u64, encoded_len(bytes as u64));
        assert_eq!(tree.groups() as usize, data.len().div_ceil(G));
        for (group, part) in data.chunks(G).enumerate() {
            assert!(tree.check(group as u32, part), "group {group} of {bytes} bytes");
            assert!(!tree.check(group as u32 + 1, part), "a group in the wrong place");
            assert!(!tree.check(group as u32, &part[..part.len() - 1]), "a short group");
        }
        assert_eq!(Outboard::from_bytes(&encoded, Some(tree.id())).unwrap(), tree);
    }
}

#[test]
fn any_flipped_byte_of_any_group_is_refused() {
    let (mut data, tree, _) = made(3 * G + 300);
    for at in 0..data.len() {
        // Every byte of the short last group, and a walk through the others: each check hashes a group.
        if at < 3 * G && at % 173 != 0 {
            continue;
        }
        let group = at / G;
        let end = data.len().min((group + 1) * G);
        data[at] ^= 1 << (at % 8);
        assert!(!tree.check(group as u32, &data[group * G..end]), "byte {at}");
        data[at] ^= 1 << (at % 8);
        assert!(at % 8000 != 0 || tree.check(group as u32, &data[group * G..end]));
    }
}

#[test]
fn any_flipped_byte_of_the_tree_is_refused() {
    let (_, tree, mut encoded) = made(6 * G + 77);
    for at in 0..encoded.len() {
        encoded[at] ^= 1 << (at % 8);
        assert!(Outboard::from_bytes(&encoded, Some(tree.id())).is_err(), "byte {at}");
        let claimed = Outboard::from_bytes(&encoded, None);
        assert!(claimed.is_err(), "byte {at} without a name to compare with");
        encoded[at] ^= 1 << (at % 8);
    }
    for len in 0..encoded.len() {
        assert!(Outboard::from_bytes(&encoded[..len], None).is_err(), "cut at {len}");
    }
    encoded.push(0);
    assert!(Outboard::from_bytes(&encoded, None).is_err());
}

#[test]
fn a_tree_cut_short_or_with_another_length_is_refused() {
    // The top of a tree of four groups, presented as a tree of two groups twice as long: its hashes are right.
    let (data, tree, encoded) = made(4 * G);
    let id = *tree.id().as_bytes();
    for bytes in [2 * G, 2 * G - 1, G + 1] {
        let mut lie = header(bytes as u64, &id).to_vec();
        lie.extend(&encoded[HEADER_BYTES..HEADER_BYTES + PAIR_BYTES]);
        lie.extend(&data[G..bytes]);
        assert!(matches!(Outboard::from_bytes(&lie, Some(tree.id())), Err(Error::Mismatch { .. })));
    }
    // The same number of groups, the last one longer or shorter.
    let (_, tree, encoded) = made(3 * G + 100);
    for bytes in [3 * G + 99, 3 * G + 101] {
        let mut lie = header(bytes as u64, tree.id().as_bytes()).to_vec();
        lie.extend(&encoded[HEADER_BYTES..]);
        lie.resize(encoded_len(bytes as u64) as usize, 0);
        assert!(matches!(Outboard::from_bytes(&lie, Some(tree.id())), Err(Error::Mismatch { .. })));
    }
}

#[tokio::test]
async fn a_lying_stream_is_left_at_its_first_wrong_pair() {
    let (_, tree, mut encoded) = made(40 * G);
    let bad = HEADER_BYTES + 10 * PAIR_BYTES + 3;
    encoded[bad] ^= 1;
    let mut stream = &encoded[..];
    assert!(
        Outboard::read(&mut stream, Some(tree.id()), MAX_FILE_BYTES, Duration::from_secs(60)).await.is_err()
    );
    assert_eq!(encoded.len() - stream.len(), HEADER_BYTES + 11 * PAIR_BYTES, "bytes that were read");
    // A claim of a terabyte allocates nothing before it is proven.
    let mut lie = header(MAX_FILE_BYTES, tree.id().as_bytes()).to_vec();
    lie.extend([7; 640]);
    let mut stream = &lie[..];
    assert!(
        Outboard::read(&mut stream, Some(tree.id()), MAX_FILE_BYTES, Duration::from_secs(60)).await.is_err()
    );
    assert_eq!(stream.len(), 640 - PAIR_BYTES);
}

#[test]
fn hashing_reports_and_can_be_stopped() {
    let file = written(&noise(3 << 20, 2));
    let mut seen = 0;
    Outboard::make(file.path(), &mut |done| {
        seen = done;
        true
    })
    .unwrap();
    assert_eq!(seen, 3 << 20);
    let stopped = Outboard::make(file.path(), &mut |done| done < 1 << 20);
    assert!(matches!(stopped, Err(Error::Stopped)));
    let empty = written(&[]);
    assert!(matches!(Outboard::make(empty.path(), &mut |_| true), Err(Error::Io { .. })));
}
