//! Lists threaded through the stores' own tables: four bytes a link, no allocation.

/// No element.
pub(crate) const NIL: u32 = u32::MAX;

/// Two links for each element of a store. An element is in one list at most, and its links belong to
/// the holder of that list (for a pool's lists: of the pool's lock).
pub(crate) trait Links {
    /// Towards the newer end.
    fn newer(&self, at: u32) -> u32;
    /// Towards the older end.
    fn older(&self, at: u32) -> u32;
    fn set_newer(&self, at: u32, to: u32);
    fn set_older(&self, at: u32, to: u32);
}

/// A list from newest to oldest.
#[derive(Debug)]
pub(crate) struct List {
    newest: u32,
    oldest: u32,
    len: u32,
}

impl Default for List {
    fn default() -> Self {
        Self {
            newest: NIL,
            oldest: NIL,
            len: 0,
        }
    }
}

impl List {
    pub(crate) const fn len(&self) -> u32 {
        self.len
    }

    /// [`NIL`] when empty.
    pub(crate) const fn oldest(&self) -> u32 {
        self.oldest
    }

    pub(crate) fn push(&mut self, links: &impl Links, at: u32) {
        links.set_newer(at, NIL);
        links.set_older(at, self.newest);
        if self.newest == NIL {
            self.oldest = at;
        } else {
            links.set_newer(self.newest, at);
        }
        self.newest = at;
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, links: &impl Links, at: u32) {
        let (newer, older) = (links.newer(at), links.older(at));
        if newer == NIL {
            self.newest = older;
        } else {
            links.set_older(newer, older);
        }
        if older == NIL {
            self.oldest = newer;
        } else {
            links.set_newer(older, newer);
        }
        self.len -= 1;
    }

    /// Puts `new`, which is in no list, where `old` is; `old` is in none then.
    pub(crate) fn replace(&mut self, links: &impl Links, old: u32, new: u32) {
        let (newer, older) = (links.newer(old), links.older(old));
        links.set_newer(new, newer);
        links.set_older(new, older);
        if newer == NIL {
            self.newest = new;
        } else {
            links.set_older(newer, new);
        }
        if older == NIL {
            self.oldest = new;
        } else {
            links.set_newer(older, new);
        }
    }
}

/// A stack of elements that are in no list: free slots.
#[derive(Debug)]
pub(crate) struct FreeList {
    top: u32,
    len: u32,
}

impl Default for FreeList {
    fn default() -> Self {
        Self { top: NIL, len: 0 }
    }
}

impl FreeList {
    pub(crate) const fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn push(&mut self, links: &impl Links, at: u32) {
        links.set_older(at, self.top);
        self.top = at;
        self.len += 1;
    }

    pub(crate) fn pop(&mut self, links: &impl Links) -> Option<u32> {
        if self.top == NIL {
            return None;
        }
        let at = self.top;
        self.top = links.older(at);
        self.len -= 1;
        Some(at)
    }

    /// Up to `count` elements from the top.
    pub(crate) fn split(&mut self, links: &impl Links, count: u32) -> Self {
        if count >= self.len {
            return std::mem::take(self);
        }
        let mut part = Self::default();
        while part.len < count {
            match self.pop(links) {
                Some(at) => part.push(links, at),
                None => break,
            }
        }
        part
    }

    /// Moves everything from `other` here.
    pub(crate) fn append(&mut self, links: &impl Links, mut other: Self) {
        if self.len == 0 {
            *self = other;
            return;
        }
        while let Some(at) = other.pop(links) {
            self.push(links, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::collections::VecDeque;

    struct Cells(Vec<(Cell<u32>, Cell<u32>)>);

    fn i(at: u32) -> usize {
        usize::try_from(at).unwrap()
    }

    impl Links for Cells {
        fn newer(&self, at: u32) -> u32 {
            self.0[i(at)].0.get()
        }
        fn older(&self, at: u32) -> u32 {
            self.0[i(at)].1.get()
        }
        fn set_newer(&self, at: u32, to: u32) {
            self.0[i(at)].0.set(to);
        }
        fn set_older(&self, at: u32, to: u32) {
            self.0[i(at)].1.set(to);
        }
    }

    fn contents(list: &List, links: &Cells) -> Vec<u32> {
        let mut at = list.oldest();
        let mut all = Vec::new();
        while at != NIL {
            all.push(at);
            at = links.newer(at);
        }
        all
    }

    proptest::proptest! {
        #[test]
        fn a_list_behaves_like_a_deque(ops in proptest::collection::vec((0u8..3, 0u32..12), 0..200)) {
            let links = Cells(vec![Default::default(); 24]);
            let (mut list, mut model) = (List::default(), VecDeque::new());
            for (op, at) in ops {
                let there = model.iter().position(|x| x % 12 == at);
                match (op, there) {
                    (0, None) => { list.push(&links, at); model.push_back(at); }
                    (1, Some(p)) => { let x = model.remove(p).unwrap(); list.remove(&links, x); }
                    (2, Some(p)) => {
                        let new = (model[p] + 12) % 24;
                        list.replace(&links, model[p], new);
                        model[p] = new;
                    }
                    _ => {}
                }
                proptest::prop_assert_eq!(contents(&list, &links), Vec::from(model.clone()));
                proptest::prop_assert_eq!(i(list.len()), model.len());
            }
        }

        #[test]
        fn a_free_list_loses_and_duplicates_nothing(cuts in proptest::collection::vec(0u32..10, 0..20)) {
            let links = Cells(vec![Default::default(); 16]);
            let mut free = FreeList::default();
            (0..16).for_each(|at| free.push(&links, at));
            for cut in cuts {
                let part = free.split(&links, cut);
                proptest::prop_assert!(part.len() == cut);
                free.append(&links, part);
            }
            let mut all: Vec<_> = std::iter::from_fn(|| free.pop(&links)).collect();
            all.sort_unstable();
            proptest::prop_assert_eq!(all, Vec::from_iter(0..16));
        }
    }
}
