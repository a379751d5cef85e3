//! The memory of quarters. Those of one size lie side by side in slabs, so that also the many small ones of a long session are in
//! huge pages: a step of attention behind 8,192 positions takes a seventh less.
//!
//! A quarter takes a free place of the slab that has fewest, so slabs become empty when sessions end, and an empty one goes back to
//! the system; one stays while all others are full, since the next quarter would need it. Limits: places that are free in slabs
//! that are not empty serve quarters of the same size only. A process holds what quarters of each size took at most together,
//! and what sessions count (their bytes) may be less.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::{Deref, DerefMut},
    ptr::NonNull,
    slice,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::kernels::slab::{HUGE_PAGE, LINE, Slab};

/// A slab holds at least so many quarters, so at most an eighth of it is never used.
const FEWEST: usize = 8;

/// Some f16 bit patterns, aligned to a line of the caches.
#[derive(Debug)]
pub struct Quarter {
    start: NonNull<u16>,
    len: usize,
}

// SAFETY: the memory belongs to the quarter alone, like that of a box.
unsafe impl Send for Quarter {}
// SAFETY: as above.
unsafe impl Sync for Quarter {}

/// A slab and the places in it that no quarter has.
struct Places {
    slab: Slab,
    free: Vec<usize>,
    count: usize,
}

impl Places {
    fn is_empty(&self) -> bool {
        self.free.len() == self.count
    }
}

/// All slabs for quarters of one size, by their addresses, and those with free places by how many they have.
#[derive(Default)]
struct Slabs {
    all: BTreeMap<usize, Places>,
    with_free: BTreeSet<(usize, usize)>,
}

/// Slabs by the bytes of a place.
static SLABS: Mutex<BTreeMap<usize, Slabs>> = Mutex::new(BTreeMap::new());

/// All slabs. What is changed under the lock is whole whenever something there can panic.
fn slabs() -> MutexGuard<'static, BTreeMap<usize, Slabs>> {
    SLABS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Slabs {
    /// A free place of `place` bytes, `None` where there is no memory.
    fn take(&mut self, place: usize) -> Option<NonNull<u8>> {
        let (free, at) = match self.with_free.first() {
            Some(fewest) => *fewest,
            None => {
                let slab = Slab::new(place.checked_mul(FEWEST)?.checked_next_multiple_of(HUGE_PAGE)?)?;
                let (at, count) = (slab.start().as_ptr() as usize, slab.bytes() / place);
                // The first places go first.
                self.all.insert(at, Places { slab, free: (0..count).rev().collect(), count });
                self.with_free.insert((count, at));
                (count, at)
            }
        };
        let places = self.all.get_mut(&at)?;
        let number = places.free.pop()?;
        self.with_free.remove(&(free, at));
        if free > 1 {
            self.with_free.insert((free - 1, at));
        }
        // SAFETY: the place ends inside the slab.
        Some(unsafe { places.slab.start().add(number * place) })
    }

    /// Gives back the place of `place` bytes at `start`; the result is what goes back to the system.
    fn give_back(&mut self, start: usize, place: usize) -> [Option<Places>; 2] {
        let Some((&at, places)) = self.all.range_mut(..=start).next_back() else { return [None, None] };
        self.with_free.remove(&(places.free.len(), at));
        places.free.push((start - at) / place);
        self.with_free.insert((places.free.len(), at));
        // One empty slab stays while there is no other place.
        let goes = places.is_empty() && (self.with_free.len() > 1 || self.all.len() == 1);
        let gone = if goes { self.remove(at) } else { None };
        let last = self.all.first_key_value().filter(|(_, places)| self.all.len() == 1 && places.is_empty());
        let last = last.map(|(at, _)| *at);
        [gone, last.and_then(|at| self.remove(at))]
    }

    fn remove(&mut self, at: usize) -> Option<Places> {
        let places = self.all.remove(&at)?;
        self.with_free.remove(&(places.free.len(), at));
        Some(places)
    }
}

/// Bytes of the place of a quarter of `len` f16.
fn place_of(len: usize) -> usize {
    let bytes =
        len.checked_mul(size_of::<u16>()).and_then(|bytes| bytes.max(1).checked_next_multiple_of(LINE));
    bytes.expect("a quarter fits the address space")
}

impl Quarter {
    /// `len` times `bits`. Without memory the process ends, as with a box.
    pub(super) fn new(len: usize, bits: u16) -> Self {
        let start = Self::place(len).cast::<u16>();
        // SAFETY: the place has room for `len` values and nothing else knows it.
        unsafe { slice::from_raw_parts_mut(start.as_ptr().cast::<std::mem::MaybeUninit<u16>>(), len) }
            .fill(std::mem::MaybeUninit::new(bits));
        Self { start, len }
    }

    /// What stands where a quarter was: it holds nothing and takes no memory.
    pub(super) fn gone() -> Self {
        Self { start: NonNull::dangling(), len: 0 }
    }

    fn place(len: usize) -> NonNull<u8> {
        let place = place_of(len);
        let taken = slabs().entry(place).or_default().take(place);
        taken.unwrap_or_else(|| {
            let layout = std::alloc::Layout::from_size_align(place, LINE).expect("the size of what is there");
            std::alloc::handle_alloc_error(layout)
        })
    }
}

impl Drop for Quarter {
    fn drop(&mut self) {
        if self.len == 0 {
            return;
        }
        let place = place_of(self.len);
        let mut slabs = slabs();
        let Some(of_size) = slabs.get_mut(&place) else { return };
        let gone = of_size.give_back(self.start.as_ptr() as usize, place);
        if of_size.all.is_empty() {
            slabs.remove(&place);
        }
        // Others need not wait for the system.
        drop(slabs);
        drop(gone);
    }
}

impl Clone for Quarter {
    fn clone(&self) -> Self {
        if self.len == 0 {
            return Self::gone();
        }
        let start = Self::place(self.len).cast::<u16>();
        // SAFETY: both have room for `len` values, which are written here, and do not overlap.
        unsafe { start.copy_from_nonoverlapping(self.start, self.len) };
        Self { start, len: self.len }
    }
}

impl PartialEq for Quarter {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Deref for Quarter {
    type Target = [u16];

    fn deref(&self) -> &[u16] {
        // SAFETY: all values were written when the quarter was made, and the memory is its own.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Quarter {
    fn deref_mut(&mut self) -> &mut [u16] {
        // SAFETY: as above, and the quarter is borrowed for writing.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slabs for quarters of `len`, and free places in them. No other test has quarters of these sizes.
    fn slabs_of(len: usize) -> (usize, usize) {
        let slabs = slabs();
        let Some(of_size) = slabs.get(&place_of(len)) else { return (0, 0) };
        (of_size.all.len(), of_size.all.values().map(|places| places.free.len()).sum())
    }

    #[test]
    fn quarters_share_slabs_and_do_not_overlap() {
        let len = 100_003;
        let count = HUGE_PAGE / place_of(len);
        let mut quarters: Vec<Quarter> =
            (0..2 * count + 1).map(|number| Quarter::new(len, number as u16)).collect();
        assert_eq!(slabs_of(len), (3, count - 1));
        for (number, quarter) in quarters.iter_mut().enumerate() {
            assert_eq!(quarter.as_ptr() as usize % LINE, 0);
            assert!(quarter.iter().all(|bits| *bits == number as u16), "{number} is written over");
            quarter.fill(!(number as u16));
        }
        assert!(
            quarters.iter().enumerate().all(|(number, it)| it.iter().all(|bits| *bits == !(number as u16)))
        );
        // The slab with fewest free places is filled first, and slabs without quarters go.
        let gone = quarters.remove(1).as_ptr();
        let again = quarters[0].clone();
        assert_eq!((again.as_ptr(), again[len - 1]), (gone, !0));
        drop(quarters);
        assert_eq!(slabs_of(len), (1, count - 1));
        drop(again);
        assert_eq!(slabs_of(len), (0, 0));
    }

    #[test]
    fn an_empty_slab_stays_while_all_others_are_full() {
        let len = 200_003;
        let count = HUGE_PAGE.max((FEWEST * place_of(len)).next_multiple_of(HUGE_PAGE)) / place_of(len);
        let mut quarters: Vec<Quarter> = (0..count + 1).map(|_| Quarter::new(len, 1)).collect();
        assert_eq!(slabs_of(len), (2, count - 1));
        drop(quarters.pop());
        assert_eq!(slabs_of(len), (2, count), "the next quarter needs no new slab");
        quarters.push(Quarter::new(len, 2));
        drop(quarters.pop());
        drop(quarters.pop());
        assert_eq!(slabs_of(len), (2, count + 1));
        quarters.push(Quarter::new(len, 3));
        assert_eq!(slabs_of(len), (2, count), "the fuller one is filled");
        drop(quarters);
        assert_eq!(slabs_of(len), (0, 0));
    }

    #[test]
    fn what_is_gone_takes_no_place() {
        let gone = Quarter::gone();
        assert!(gone.is_empty() && gone == gone.clone());
        assert_eq!(slabs_of(0), (0, 0));
    }

    #[test]
    fn large_quarters_leave_little_of_a_slab_unused() {
        let len = (HUGE_PAGE + 4096) / size_of::<u16>();
        let quarters = [Quarter::new(len, 1), Quarter::new(len, 2)];
        assert_eq!(slabs_of(len), (1, FEWEST - 2));
        assert_eq!((quarters[0][len - 1], quarters[1][0]), (1, 2));
    }

    #[test]
    fn quarters_go_from_thread_to_thread() {
        let len = 5_003;
        let made: Vec<Quarter> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4u16)
                .map(|thread| {
                    scope.spawn(move || (0..200).map(|_| Quarter::new(len, thread)).collect::<Vec<_>>())
                })
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        for (number, quarter) in made.iter().enumerate() {
            assert!(quarter.iter().all(|bits| usize::from(*bits) == number / 200));
        }
        std::thread::scope(|scope| {
            made.into_iter().for_each(|quarter| drop(scope.spawn(move || drop(quarter))))
        });
        assert_eq!(slabs_of(len), (0, 0));
    }
}
