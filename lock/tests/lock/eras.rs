//! Lost commits: when the database's history turns out to be another one, no token is used twice.

use std::process::Command;

use leadergroup_lock::{Beat, Grant, TOKEN_JUMP, Token};

use crate::cast::{grant, grant_one, granted, key, row, session, take};
use crate::postgres::{Server, migrated};

#[tokio::test]
async fn tokens_jump_when_the_history_is_another_one() {
    let (database, store) = migrated().await;
    let other = database.store();
    let own = session(&store).await;
    let (old, fresh) = (key("old"), key("fresh"));
    take(&store, own, &old).await;
    take(&store, own, &fresh).await;
    assert_eq!(grant_one(&store, own, grant(&old, 0, "p0")).await, granted(1));
    let before = store.beat(own, &[]).await.unwrap();
    assert!(!before.epoch_changed);
    assert_eq!(before.epoch.era, 0);
    assert!(!other.beat(own, &[]).await.unwrap().epoch_changed);

    // As after a switch to another server: the recorded history is not the present one.
    database.sql("update leadergroup.meta set system_identifier = 42").await;
    let after = store.beat(own, &[]).await.unwrap();
    assert!(after.epoch_changed && after.alive);
    assert_eq!(after.epoch.era, 1);
    assert_eq!(after.epoch.system_identifier, before.epoch.system_identifier);
    assert!(!store.beat(own, &[]).await.unwrap().epoch_changed, "said once");
    // The other program was not the one to notice, yet it has to know.
    let heard: Beat = other.beat(own, &[]).await.unwrap();
    assert!(heard.epoch_changed);
    assert_eq!(heard.epoch, after.epoch);

    assert_eq!(grant_one(&store, own, grant(&old, 1, "p1")).await, granted(TOKEN_JUMP + 2));
    assert_eq!(grant_one(&store, own, grant(&old, TOKEN_JUMP + 2, "p2")).await, granted(TOKEN_JUMP + 3));
    assert_eq!(grant_one(&store, own, grant(&fresh, 0, "p1")).await, granted(TOKEN_JUMP + 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_notices_by_itself_and_many_at_once_begin_one_era() {
    let (database, store) = migrated().await;
    let own = session(&store).await;
    let keys = crate::cast::keys(16);
    for key in &keys {
        take(&store, own, key).await;
    }
    database.sql("update leadergroup.meta set timeline = 77").await;
    let grants: Vec<_> = keys
        .iter()
        .map(|key| {
            let (store, grant) = (database.store(), grant(key, 0, "p0"));
            tokio::spawn(async move { store.grant(own, &[grant]).await.unwrap() })
        })
        .collect();
    for grant in grants {
        assert_eq!(grant.await.unwrap(), [granted(TOKEN_JUMP + 1)]);
    }
    assert_eq!(database.number("select era from leadergroup.meta").await, 1);
}

/// A real one: the server goes back to an old state of itself and begins a new timeline, as a restored backup or a
/// promoted standby does. What was granted in between is lost, and its tokens are not handed out again.
#[tokio::test]
async fn a_server_restored_from_an_old_backup_hands_no_token_out_twice() {
    let server = Server::start(&[]);
    let (_database, store) = server.migrated().await;
    let own = session(&store).await;
    let key = key("a");
    take(&store, own, &key).await;
    assert_eq!(grant_one(&store, own, grant(&key, 0, "p0")).await, granted(1));
    assert_eq!(store.beat(own, &[]).await.unwrap().epoch.timeline, 1);

    server.stop();
    let backup = server.data().with_file_name("backup");
    copy(&server.data(), &backup);
    server.launch();
    for token in 1..4 {
        assert_eq!(grant_one(&store, own, grant(&key, token, "lost")).await, granted(token + 1));
    }
    server.kill();
    std::fs::remove_dir_all(server.data()).unwrap();
    copy(&backup, &server.data());
    std::fs::write(server.data().join("recovery.signal"), "").unwrap();
    server.set("restore_command", "false");
    server.launch();
    server.wait_writable();

    let seen = row(&store, &key).await;
    assert_eq!(seen.token, Token::new(1), "the last three grants are lost");
    let beat = store.beat(own, &[]).await.unwrap();
    assert!(beat.epoch_changed && beat.alive);
    assert_eq!((beat.epoch.timeline, beat.epoch.era), (2, 2), "the era is not below the timeline");
    let next = Grant { expected: seen.token, ..grant(&key, 1, "p1") };
    assert_eq!(grant_one(&store, own, next).await, granted(2 * TOKEN_JUMP + 1));
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    let status = Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(status.success());
}
