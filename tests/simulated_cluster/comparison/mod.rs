//! The simulated server beside a real kube-apiserver: the same random requests get the same answers, and the same
//! watches show the same events.

mod admission;
mod operations;
mod world;

use crate::{
    api_server::{ApiServer as Simulated, Clock, Kind, Sequence},
    apiserver::ApiServer as Real,
};
use operations::Operation;
use world::World;

const SEQUENCES: u64 = 6;
const LENGTH: usize = 150;

#[tokio::test]
async fn the_simulated_server_answers_as_a_real_one() {
    let server = Real::shared().await;
    let mut differences = Vec::new();
    for seed in seeds() {
        let namespace = server.namespace("compared").await;
        let mut real = World::real(server.client().await, &namespace).await;
        let simulated = simulated(seed);
        let mut fake = World::simulated(&simulated, &real);
        let mut sequence = Sequence::new(seed);
        for number in 0..LENGTH {
            let operation = Operation::random(&mut sequence);
            let (wanted, found) = (real.perform(&operation).await, fake.perform(&operation).await);
            if wanted != found {
                differences.push(format!(
                    "seed {seed}, request {number}, {operation:?}\n   real: {wanted}\n   simulated: {found}"
                ));
                break;
            }
        }
        if differences.is_empty() {
            for (wanted, found) in real.watch_all().await.iter().zip(fake.watch_all().await) {
                assert_eq!(wanted.len(), found.len(), "seed {seed}: {wanted:#?} {found:#?}");
                for (wanted, found) in wanted.iter().zip(found) {
                    assert_eq!(*wanted, found, "seed {seed}");
                }
            }
        }
        assert_eq!(simulated.unsupported(), [""; 0]);
    }
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
}

#[tokio::test]
async fn after_a_restart_both_answer_that_an_old_version_is_gone() {
    let server = Real::start(&[]).await;
    let namespace = server.namespace("compared").await;
    let mut real = World::real(server.client().await, &namespace).await;
    let simulated = simulated(1);
    let mut fake = World::simulated(&simulated, &real);
    let mut events = Vec::new();
    for world in [&mut real, &mut fake] {
        world.create_pod("a").await;
        world.create_pod("b").await;
    }
    server.kill();
    server.launch().await;
    simulated.stop(false);
    simulated.start();
    for world in [&mut real, &mut fake] {
        let version = world.first_version("a");
        events.push(world.watch(Kind::Pod, &version, "").await);
    }
    assert_eq!(events[0], events[1]);
    assert_eq!((&events[0][0]["type"], &events[0][0]["object"]["code"]), (&"ERROR".into(), &410.into()));
}

/// As in the other simulation, variables of the environment ask for more.
fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok()).unwrap_or(1);
    let first = number("LEADERGROUP_SIMULATION_FIRST");
    first..first + SEQUENCES * number("LEADERGROUP_SIMULATION_TIMES")
}

fn simulated(seed: u64) -> Simulated {
    let start = "2026-01-01T00:00:00Z".parse().unwrap();
    Simulated::new(Clock::starting_at(start), seed)
}
