//! `topic`: keys are words between dots; in a binding key, `*` stands for exactly one word and `#` for any
//! number of words. The empty key has no words; between two dots there is an empty word.
//!
//! The bindings form a trie: a path from the root spells a binding key. A message walks it word by word with
//! the set of nodes that its key so far can reach, so that the cost depends on the words of the key and on the
//! wildcards met, not on the number of bindings. No node is in the set twice: however many `#` a peer puts in
//! its keys, a step costs no more than there are nodes.

use std::hash::{BuildHasher, RandomState};

use smallvec::SmallVec;

use super::hash_index::HashIndex;
use super::{Binding, Destinations, Matched, Matching, RouteInput, take_out};

/// Position of a node in `Topic::nodes`.
type NodeId = u32;

const ROOT: NodeId = 0;

#[derive(Debug)]
pub(super) struct Topic {
    /// The root is always there. Only the root has neither destinations nor children.
    nodes: Vec<Node>,
    /// Nodes not in use.
    free: Vec<NodeId>,
    /// The children by plain words of all nodes, under a hash of parent and word: a map per node would
    /// take several times the memory.
    children: HashIndex<NodeId>,
    hash_key: RandomState,
    /// The number of the current step of a walk; it never comes again.
    step: u64,
    /// The nodes that the words so far can reach, and those with the next word.
    reached: Vec<NodeId>,
    reached_next: Vec<NodeId>,
}

#[derive(Debug, Default)]
struct Node {
    parent: NodeId,
    /// The word that leads here from the parent, wildcards included. Short ones lie here: a look-up compares them.
    word: SmallVec<[u8; 16]>,
    /// The children by `*` and `#`; none if it is the root.
    star: NodeId,
    hash: NodeId,
    /// How many children there are by plain words.
    child_count: u32,
    /// Whether the parent's `#` leads here: then any further word leads here again.
    is_hash: bool,
    /// The last step at which the node was reached.
    step: u64,
    destinations: Destinations,
}

impl Default for Topic {
    fn default() -> Self {
        Self {
            nodes: vec![Node::default()],
            free: Vec::new(),
            children: HashIndex::default(),
            hash_key: RandomState::new(),
            step: 0,
            reached: Vec::new(),
            reached_next: Vec::new(),
        }
    }
}

/// The words of a key.
fn words(key: &[u8]) -> impl Iterator<Item = &[u8]> {
    let count = if key.is_empty() { 0 } else { usize::MAX };
    key.split(|byte| *byte == b'.').take(count)
}

/// The hash under which the child of a node by a word is found. The word's hash is secret, so that nobody can
/// choose words that meet; the multiplication keeps equal words of different parents apart.
fn child_hash(parent: NodeId, word_hash: u64) -> u64 {
    word_hash ^ u64::from(parent).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl Topic {
    /// The child of a node by a word, wildcards taken as such.
    fn child(&self, parent: NodeId, word: &[u8]) -> Option<NodeId> {
        let node = &self.nodes[parent as usize];
        match word {
            b"*" => Some(node.star).filter(|child| *child != ROOT),
            b"#" => Some(node.hash).filter(|child| *child != ROOT),
            _ => self.plain_child(parent, word, self.hash_key.hash_one(word)),
        }
    }

    #[inline]
    fn plain_child(&self, parent: NodeId, word: &[u8], word_hash: u64) -> Option<NodeId> {
        self.children.find(child_hash(parent, word_hash), |child| {
            let node = &self.nodes[child as usize];
            node.parent == parent && *node.word == *word
        })
    }

    fn add_child(&mut self, parent: NodeId, word: &[u8]) -> NodeId {
        let is_hash = word == b"#";
        let node = Node { parent, word: word.into(), is_hash, ..Node::default() };
        let child = match self.free.pop() {
            Some(child) => {
                self.nodes[child as usize] = node;
                child
            }
            None => {
                self.nodes.push(node);
                NodeId::try_from(self.nodes.len() - 1).expect("memory ends before 2^32 nodes")
            }
        };
        match word {
            b"*" => self.nodes[parent as usize].star = child,
            b"#" => self.nodes[parent as usize].hash = child,
            _ => {
                self.nodes[parent as usize].child_count += 1;
                self.children.insert(child_hash(parent, self.hash_key.hash_one(word)), child);
            }
        }
        child
    }

    /// Frees a node, and then its ancestors, as long as nothing needs them.
    fn prune(&mut self, mut id: NodeId) {
        while id != ROOT {
            let node = &self.nodes[id as usize];
            let children = node.child_count > 0 || node.star != ROOT || node.hash != ROOT;
            if children || !node.destinations.is_empty() {
                return;
            }
            let Node { parent, word, .. } = std::mem::take(&mut self.nodes[id as usize]);
            self.free.push(id);
            match &*word {
                b"*" => self.nodes[parent as usize].star = ROOT,
                b"#" => self.nodes[parent as usize].hash = ROOT,
                _ => {
                    self.nodes[parent as usize].child_count -= 1;
                    self.children.remove(child_hash(parent, self.hash_key.hash_one(&*word)), id);
                }
            }
            id = parent;
        }
        if self.free.len() + 1 == self.nodes.len() {
            // Only the root is left: give the memory back.
            self.nodes.truncate(1);
            self.nodes.shrink_to_fit();
            self.free = Vec::new();
            self.children.shrink();
            (self.reached, self.reached_next) = (Vec::new(), Vec::new());
        }
    }

    /// Leaves in `reached` the nodes that the whole key leads to.
    fn walk(&mut self, key: &[u8]) {
        self.step += 1;
        self.reached.clear();
        reach(&mut self.nodes, &mut self.reached, ROOT, self.step);
        for word in words(key) {
            self.step += 1;
            let word_hash = self.hash_key.hash_one(word);
            let mut next = std::mem::take(&mut self.reached_next);
            next.clear();
            for id in &self.reached {
                let node = &self.nodes[*id as usize];
                let (star, is_hash) = (node.star, node.is_hash);
                if node.child_count > 0
                    && let Some(child) = self.plain_child(*id, word, word_hash)
                {
                    reach(&mut self.nodes, &mut next, child, self.step);
                }
                if star != ROOT {
                    reach(&mut self.nodes, &mut next, star, self.step);
                }
                if is_hash {
                    reach(&mut self.nodes, &mut next, *id, self.step);
                }
            }
            self.reached_next = std::mem::replace(&mut self.reached, next);
        }
    }
}

/// Adds a node to the reached ones, and with it the nodes that a `#` for no word at all leads to.
fn reach(nodes: &mut [Node], reached: &mut Vec<NodeId>, mut id: NodeId, step: u64) {
    loop {
        let node = &mut nodes[id as usize];
        if node.step == step {
            return; // and what follows it has been reached with it
        }
        node.step = step;
        reached.push(id);
        if node.hash == ROOT {
            return;
        }
        id = node.hash;
    }
}

impl Matching for Topic {
    fn bind(&mut self, _ordinal: u64, binding: &Binding) {
        let mut id = ROOT;
        for word in words(&binding.binding_key) {
            id = self.child(id, word).unwrap_or_else(|| self.add_child(id, word));
        }
        self.nodes[id as usize].destinations.push(binding.destination);
    }

    fn unbind(&mut self, _ordinal: u64, binding: &Binding) {
        let mut id = ROOT;
        for word in words(&binding.binding_key) {
            id = self.child(id, word).expect("the path of a binding that was bound is there");
        }
        take_out(&mut self.nodes[id as usize].destinations, binding.destination);
        self.prune(id);
    }

    fn route(&mut self, message: &RouteInput<'_>, matched: &mut Matched<'_>) {
        for key in message.keys {
            self.walk(key);
            for id in &self.reached {
                for destination in &self.nodes[*id as usize].destinations {
                    matched.add(*destination);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::ExchangeKind;
    use super::super::tests::{Net, topic_matches};
    use super::*;
    use crate::model::ids::{Destination, ExchangeKey, QueueKey};

    /// Whether a message with the routing key reaches a queue bound with the binding key.
    fn matches(binding_key: &str, routing_key: &str) -> bool {
        let mut net = Net::new(ExchangeKind::Topic);
        net.bind("x", "q", binding_key);
        !net.route(routing_key).is_empty()
    }

    #[test]
    fn s7_topic_plain_words_are_case_sensitive() {
        assert!(matches("a.b", "a.b"));
        assert!(!matches("a.b", "a.B"));
        assert!(!matches("a.b", "a"));
        assert!(!matches("a.b", "a.b.c"));
    }

    #[test]
    fn s7_topic_star_is_exactly_one_word() {
        assert!(matches("*", "a"));
        assert!(!matches("*", "a.b"));
        assert!(matches("a.*.c", "a.b.c"));
        assert!(!matches("a.*.c", "a.c"));
        assert!(!matches("a.*.c", "a.b.b.c"));
    }

    #[test]
    fn s7_topic_hash_is_any_number_of_words() {
        for key in ["", "a", "a.b", "a.b.c", ".", "a."] {
            assert!(matches("#", key), "{key:?}");
            assert!(matches("#.#", key), "{key:?}");
        }
        for key in ["a.c", "a.b.c", "a.b.b.c", "a..c", "a.c.c"] {
            assert!(matches("a.#.c", key), "{key:?}");
        }
        assert!(!matches("a.#.c", "a"));
        assert!(!matches("a.#.c", "a.c.b"));
        assert!(matches("#.*", "a") && !matches("#.*", ""));
    }

    #[test]
    fn s7_topic_empty_words() {
        assert!(matches("", "") && !matches("*", "") && !matches("", "."));
        assert!(matches("a.*.b", "a..b") && matches("a..b", "a..b") && !matches("a..b", "a.b"));
        assert!(matches("*.*", ".") && matches(".", ".") && !matches("*", "."));
        assert!(matches("a.*", "a.") && !matches("a", "a."));
    }

    #[test]
    fn s7_topic_wildcards_only_as_whole_words() {
        assert!(!matches("a*", "ab") && matches("a*", "a*"));
        assert!(!matches("##", "a") && matches("##", "##"));
        assert!(matches("*", "*") && matches("*", "#") && !matches("a", "*"));
    }

    #[test]
    fn s7_topic_queue_matched_by_several_bindings_gets_one_copy() {
        let mut net = Net::new(ExchangeKind::Topic);
        for key in ["#", "a.*", "a.b", "#.b", "*.*"] {
            net.bind("x", "q", key);
        }
        assert_eq!(net.route("a.b"), ["q"]);
    }

    /// Every step is bounded by the nodes: without that, this would take longer than the universe has lasted.
    #[test]
    fn many_hashes_cost_no_more_than_their_number() {
        let mut net = Net::new(ExchangeKind::Topic);
        net.bind("x", "q", &["#.a"; 60].join("."));
        net.bind("x", "q2", &["#"; 120].join("."));
        assert_eq!(net.route(&["a"; 120].join(".")), ["q", "q2"]);
        assert_eq!(net.route(&["a"; 59].join(".")), ["q2"]);
    }

    fn binding(queue: u64, binding_key: &str) -> Binding {
        let queue = QueueKey::from(slotmap::KeyData::from_ffi(queue | 1 << 32));
        let destination = Destination::Queue(queue);
        Binding::new(ExchangeKey::default(), destination, binding_key.as_bytes(), Default::default())
    }

    #[test]
    fn unbinding_frees_nodes() {
        let mut topic = Topic::default();
        let bindings = ["a.b.c", "a.*.c.#", "a.b", "#", "", "a"].map(|key| binding(1, key));
        for binding in &bindings {
            topic.bind(0, binding);
        }
        assert_eq!(topic.nodes.len() - topic.free.len(), 8);
        for (at, used) in [(0, 7), (1, 4), (2, 3), (3, 2), (4, 2), (5, 1)] {
            topic.unbind(0, &bindings[at]);
            assert_eq!(topic.nodes.len() - topic.free.len(), used, "{at}");
        }
        assert_eq!((topic.nodes.len(), topic.free.len()), (1, 0));
    }

    fn key() -> impl Strategy<Value = String> {
        let word = prop::sample::select(vec!["a", "b", "", "*", "#", "#"]);
        prop::collection::vec(word, 0..6).prop_map(|words| words.join("."))
    }

    proptest! {
        /// After any binds and unbinds the trie says what the rule says of each binding that is left.
        #[test]
        fn trie_matches_like_the_rule(
            bound in prop::collection::vec((key(), any::<bool>()), 1..25),
            keys in prop::collection::vec(key(), 1..20),
        ) {
            let mut net = Net::new(ExchangeKind::Topic);
            let queue = |at: usize| format!("q{at:02}");
            for (at, (binding_key, _)) in bound.iter().enumerate() {
                net.bind("x", &queue(at), binding_key);
            }
            for (at, (binding_key, stays)) in bound.iter().enumerate() {
                if !stays {
                    prop_assert_eq!(net.unbind("x", &queue(at), binding_key).bindings.len(), 1);
                }
            }
            for key in keys {
                let expected: Vec<String> = (0..bound.len())
                    .filter(|at| bound[*at].1 && topic_matches(&bound[*at].0, &key))
                    .map(queue)
                    .collect();
                prop_assert_eq!(net.route(&key), expected, "{}", key);
            }
        }
    }
}
