//! Orders that a seed determines.

use crate::random::Random;

impl Random {
    /// One of these.
    pub fn pick<T: Clone>(&mut self, all: &[T]) -> Option<T> {
        let at = self.below(all.len());
        all.get(at).cloned()
    }

    fn shuffle<T>(&mut self, all: &mut [T]) {
        for last in (1..all.len()).rev() {
            all.swap(last, self.below(last + 1));
        }
    }
}

/// Deals cards from shuffled packs. A card is dealt again only when each other one has been dealt, or could not be:
/// what was passed over comes first.
#[derive(Debug)]
pub struct Deck<T> {
    all: Vec<T>,
    left: Vec<T>,
    undealt: Vec<T>,
}

impl<T: Copy + PartialEq> Deck<T> {
    /// A deck of these cards.
    pub fn new(all: &[T]) -> Self {
        Self { all: all.to_vec(), left: Vec::new(), undealt: all.to_vec() }
    }

    /// Deals the first card that can be played: the one for which `play` returns something.
    pub fn deal<P>(
        &mut self,
        random: &mut Random,
        mut play: impl FnMut(T, &mut Random) -> Option<P>,
    ) -> Option<P> {
        let found = self.first(random, &mut play);
        found.or_else(|| {
            let mut pack: Vec<T> =
                self.all.iter().copied().filter(|card| !self.left.contains(card)).collect();
            random.shuffle(&mut pack);
            self.left.extend(pack);
            self.first(random, &mut play)
        })
    }

    fn first<P>(
        &mut self,
        random: &mut Random,
        play: &mut impl FnMut(T, &mut Random) -> Option<P>,
    ) -> Option<P> {
        let found = self.left.iter().enumerate().find_map(|(at, card)| Some((at, play(*card, random)?)));
        found.map(|(at, played)| {
            let card = self.left.remove(at);
            self.undealt.retain(|other| *other != card);
            played
        })
    }

    /// The cards that were never dealt.
    pub fn undealt(&self) -> &[T] {
        &self.undealt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CARDS: [u32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

    fn dealt(deck: &mut Deck<u32>, random: &mut Random, count: usize, may: impl Fn(u32) -> bool) -> Vec<u32> {
        (0..count).filter_map(|_| deck.deal(random, |card, _| may(card).then_some(card))).collect()
    }

    #[test]
    fn each_card_is_dealt_before_one_is_dealt_again_and_seeds_give_other_orders() {
        let order = |seed| {
            let (mut deck, mut random) = (Deck::new(&CARDS), Random::new(seed));
            let order = dealt(&mut deck, &mut random, CARDS.len(), |_| true);
            assert_eq!(deck.undealt(), [0_u32; 0]);
            order
        };
        let mut sorted = order(1);
        sorted.sort_unstable();
        assert_eq!(sorted, CARDS);
        assert_eq!(order(1), order(1));
        assert!((2..10).any(|seed| order(seed) != order(1)));
    }

    #[test]
    fn a_card_that_could_not_be_played_is_the_first_one_when_it_can_be() {
        let (mut deck, mut random) = (Deck::new(&CARDS), Random::new(7));
        let others = dealt(&mut deck, &mut random, 3 * CARDS.len(), |card| card != 5);
        assert!(!others.contains(&5) && others.len() == 3 * CARDS.len());
        assert_eq!(deck.undealt(), [5]);
        assert_eq!(dealt(&mut deck, &mut random, 1, |_| true), [5]);
        assert_eq!(dealt(&mut deck, &mut random, 1, |_| false), [0_u32; 0]);
    }
}
