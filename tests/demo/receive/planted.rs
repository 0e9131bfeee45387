//! Faults of the receiver, for proving that the report finds them: it accepts a delivery and then misbehaves.

use super::decode::Delivery;

/// A fault of the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Accepts a delivery and forgets it.
    Lose,
    /// Records two deliveries of one author the wrong way round.
    Swap,
}

impl std::str::FromStr for Fault {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        match name {
            "lose" => Ok(Self::Lose),
            "swap" => Ok(Self::Swap),
            _ => Err(()),
        }
    }
}

/// The fault that waits for its delivery.
#[derive(Debug, Default)]
pub(super) enum Planted {
    /// None.
    #[default]
    Nothing,
    /// Forget the next delivery.
    Lose,
    /// Hold deliveries back until a second one of some author comes.
    Swap(Vec<Delivery>),
}

impl Planted {
    /// Plants `fault`, unless one is under way.
    pub(super) fn plant(&mut self, fault: Fault) {
        if matches!(self, Self::Nothing) {
            *self = match fault {
                Fault::Lose => Self::Lose,
                Fault::Swap => Self::Swap(Vec::new()),
            };
        }
    }

    /// What is to be recorded for an accepted `delivery`.
    pub(super) fn filter(&mut self, delivery: Delivery) -> Vec<Delivery> {
        match std::mem::take(self) {
            Self::Nothing => vec![delivery],
            Self::Lose => Vec::new(),
            Self::Swap(mut held) => {
                if held.iter().any(|held| same_stream(held, &delivery)) {
                    // Of the other authors nothing later was recorded: they stay in order.
                    held.insert(0, delivery);
                    return held;
                }
                held.push(delivery);
                *self = Self::Swap(held);
                Vec::new()
            }
        }
    }
}

/// True for a later event of the same author and Subscription.
fn same_stream(held: &Delivery, next: &Delivery) -> bool {
    held.author == next.author
        && held.subscription == next.subscription
        && held.sequence < next.sequence
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery(author: &str, sequence: i64) -> Delivery {
        Delivery {
            subscription: "s".into(),
            event_id: format!("{author}{sequence}"),
            author: author.into(),
            sequence,
            digest: Vec::new(),
        }
    }

    /// What is recorded when `fault` is planted before the second of six deliveries.
    fn recorded(fault: Option<Fault>) -> Vec<String> {
        let mut planted = Planted::default();
        let mut ids = Vec::new();
        for (number, (author, sequence)) in
            [("a", 1), ("a", 2), ("b", 1), ("a", 3), ("b", 2), ("a", 4)]
                .into_iter()
                .enumerate()
        {
            if number == 1
                && let Some(fault) = fault
            {
                planted.plant(fault);
            }
            let records = planted.filter(delivery(author, sequence));
            ids.extend(records.into_iter().map(|record| record.event_id));
        }
        ids
    }

    #[test]
    fn each_fault_happens_once_and_to_one_author() {
        assert_eq!(recorded(None), ["a1", "a2", "b1", "a3", "b2", "a4"]);
        assert_eq!(recorded(Some(Fault::Lose)), ["a1", "b1", "a3", "b2", "a4"]);
        assert_eq!(
            recorded(Some(Fault::Swap)),
            ["a1", "a3", "a2", "b1", "b2", "a4"]
        );
    }
}
