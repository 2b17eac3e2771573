//! What an agent signs: its answer to the operator, and the message that its container leaves behind.
//!
//! What it says stays true forever ([`Promise`]), so it may be late, and anyone who has seen it may repeat it. Only
//! the agent that has made the key of its boot can sign for it: another program at the pod's address, or in the pod,
//! cannot say that the agent's program is over.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use ring::{
    rand::SystemRandom,
    signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey},
};
use serde::{Deserialize, Serialize};

use crate::contract::{Boot, Promise};

/// What is signed begins with this, so that no other signature of the key can be taken for an answer.
const PURPOSE: &[u8] = b"leadergroup agent answer v1\0";

/// What is signed of the message begins with this.
const END: &[u8] = b"leadergroup agent end v1\0";
/// The message begins with this.
const END_WORD: &str = "boot ";

/// The key pair of a boot. It is made when the agent starts, and kept in memory only.
pub struct Keys {
    pair: Ed25519KeyPair,
    boot: Boot,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").field("boot", &self.boot).finish_non_exhaustive()
    }
}

/// The system has no random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no key could be made, because the system gives no random numbers")]
pub struct NoKeys;

/// An answer whose signature is missing or wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answer is not signed with the key of its boot")]
pub struct Forged;

/// An answer as it is sent. Nothing in it counts before [`Answer::verified`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    boot: Boot,
    floor: i64,
    idle: bool,
    /// The signature, in base64url.
    signature: String,
}

impl Keys {
    /// A new key pair, and with it a new boot.
    pub fn generate() -> Result<Self, NoKeys> {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| NoKeys)?;
        Self::of(Ed25519KeyPair::from_pkcs8(document.as_ref()).map_err(|_| NoKeys)?)
    }

    /// The key pair that a seed determines, for simulations only: anyone who knows the seed can sign answers for this
    /// boot.
    pub fn from_seed(seed: &[u8; 32]) -> Result<Self, NoKeys> {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed).map_err(|_| NoKeys)?;
        Self::of(pair)
    }

    fn of(pair: Ed25519KeyPair) -> Result<Self, NoKeys> {
        let public_key = pair.public_key().as_ref().try_into().map_err(|_| NoKeys)?;
        Ok(Self { pair, boot: Boot::new(public_key) })
    }

    /// The boot that the public key names.
    pub const fn boot(&self) -> Boot {
        self.boot
    }

    /// Signs a promise of this boot.
    pub fn sign(&self, promise: Promise) -> Answer {
        let signature = self.pair.sign(&signed_text(promise));
        let Promise { boot, floor, idle } = promise;
        Answer { boot, floor, idle, signature: BASE64_URL_SAFE_NO_PAD.encode(signature) }
    }

    /// What the agent writes to the container's termination log at its start. The kubelet reports it when the container
    /// has ended. Until then it is nowhere else, so another pod that knows the boot cannot leave this message.
    pub fn termination_message(&self) -> String {
        let signature = self.pair.sign(&signed_end(self.boot));
        format!("{END_WORD}{} {}\n", self.boot, BASE64_URL_SAFE_NO_PAD.encode(signature))
    }
}

/// The boot whose container has left this message. Only the first line that could be one is checked, because a check is
/// expensive.
pub fn terminated_boot(message: &str) -> Option<Boot> {
    let (boot, signature) = message.lines().find_map(|line| line.strip_prefix(END_WORD)?.split_once(' '))?;
    let boot: Boot = boot.parse().ok()?;
    let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).ok()?;
    let key = UnparsedPublicKey::new(&ED25519, boot.public_key());
    key.verify(&signed_end(boot), &signature).ok()?;
    Some(boot)
}

impl Answer {
    /// What the agent has promised.
    pub fn verified(&self) -> Result<Promise, Forged> {
        let promise = Promise { boot: self.boot, floor: self.floor, idle: self.idle };
        let signature = BASE64_URL_SAFE_NO_PAD.decode(&self.signature).map_err(|_| Forged)?;
        let key = UnparsedPublicKey::new(&ED25519, self.boot.public_key());
        key.verify(&signed_text(promise), &signature).map_err(|_| Forged)?;
        Ok(promise)
    }
}

fn signed_end(boot: Boot) -> Vec<u8> {
    [END, boot.public_key()].concat()
}

fn signed_text(Promise { boot, floor, idle }: Promise) -> Vec<u8> {
    [PURPOSE, boot.public_key(), &floor.to_be_bytes(), &[u8::from(idle)]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_a_terminated_container_names_the_boot_that_has_signed_it() {
        let [own, other] = [(); 2].map(|()| Keys::generate().expect("random numbers"));
        let message = own.termination_message();
        assert_eq!(terminated_boot(&message), Some(own.boot()));
        assert_eq!(terminated_boot(&format!("last words\n{message}")), Some(own.boot()));
        let boot = own.boot();
        let answer = own.sign(Promise { boot, floor: 7, idle: true });
        let others = other.termination_message();
        let signature = others.trim_end().rsplit(' ').next().expect("a signature");
        for forged in [
            String::new(),
            "boot".to_owned(),
            format!("boot {boot}"),
            format!("boot {boot} "),
            format!("boot {boot} x"),
            format!("boot {boot} {signature}"),
            format!("boot {boot} {}", answer.signature),
            format!("reboot {}", message.trim_start_matches("boot ")),
        ] {
            assert_eq!(terminated_boot(&forged), None, "{forged}");
        }
    }

    #[test]
    fn only_the_agent_that_made_the_key_can_answer_for_its_boot() {
        let [own, other] = [(); 2].map(|()| Keys::generate().expect("random numbers"));
        assert_ne!(own.boot(), other.boot());
        let promise = Promise { boot: own.boot(), floor: 7, idle: false };
        let answer = own.sign(promise);
        assert_eq!(answer.verified(), Ok(promise));
        let sent = serde_json::to_string(&answer).expect("JSON");
        let received: Answer = serde_json::from_str(&sent).expect("an answer");
        assert_eq!(received.verified(), Ok(promise));
        let forgeries = [
            Answer { floor: 8, ..answer.clone() },
            Answer { idle: true, ..answer.clone() },
            Answer { boot: other.boot(), ..answer.clone() },
            Answer { signature: String::new(), ..answer.clone() },
            Answer { signature: other.sign(promise).signature, ..answer },
        ];
        for forged in forgeries {
            assert_eq!(forged.verified(), Err(Forged), "{forged:?}");
        }
        assert!(!format!("{own:?}").contains("pair"), "keys are secret");
    }
}
