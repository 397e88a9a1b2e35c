//! Bindings and permits change under requests: answers never mix two bindings, and a swap fails nobody.

use std::time::{Duration, Instant};

use deltagate_mesh::error::{Code, ServiceError};

use crate::support::{
    executor::Act,
    mesh::{Mesh, ready, ready_with},
    requests::{small, wide},
};

/// Capability and policy learn of the new binding, as they do within some 100 ms of a swap.
async fn announce(mesh: &Mesh, fingerprint: &str) {
    mesh.capability
        .change(|snapshot| snapshot.fingerprint = fingerprint.into());
    tokio::time::sleep(Duration::from_millis(200)).await;
    mesh.permit(fingerprint);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_swap_between_steps_starts_the_request_anew() {
    let mesh = ready().await;
    mesh.executor.then(Act::AnswerThenRebind("fp-2".into()));
    let (result, ()) = tokio::join!(mesh.classify(wide(255)), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        announce(&mesh, "fp-2").await;
    });
    let response = result.unwrap();
    assert_eq!(response.capability_fingerprint, "fp-2");
    // 11 groups with the old binding; its second step is refused; then all three steps with the new one.
    let calls = mesh.executor.calls();
    let steps: Vec<(String, usize)> = calls
        .iter()
        .map(|call| {
            (
                call.request.capability_fingerprint.clone(),
                call.request.sequences.len(),
            )
        })
        .filter(|(fingerprint, _)| fingerprint == "fp-2")
        .collect();
    assert_eq!(
        steps.iter().map(|(_, count)| *count).collect::<Vec<_>>(),
        [11, 2, 1]
    );
    assert_eq!(calls[0].request.capability_fingerprint, "fp-1");
    // Usage and kernels are of what gave the answers.
    let tokens: usize = calls
        .iter()
        .filter(|call| call.request.capability_fingerprint == "fp-2")
        .flat_map(|call| &call.request.sequences)
        .map(|sequence| sequence.token_ids.len())
        .sum();
    assert_eq!(response.usage.unwrap().input_tokens, tokens as u64);
    assert_eq!(response.timings.unwrap().kernels[0].launches, 18);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_waits_out_a_swap() {
    let mesh = ready().await;
    *mesh.executor.fingerprint.lock() = "fp-2".into();
    let (result, ()) = tokio::join!(mesh.classify(small()), async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        announce(&mesh, "fp-2").await;
    });
    assert_eq!(result.unwrap().capability_fingerprint, "fp-2");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_swap_that_does_not_end_is_refused_in_bounded_time() {
    let mesh = ready_with(|config| config.swap_wait = Duration::from_millis(600)).await;
    *mesh.executor.fingerprint.lock() = "fp-2".into();
    let begun = Instant::now();
    let error = mesh.classify(small()).await.unwrap_err();
    assert_eq!(
        (error.code, error.reason.as_ref()),
        (Code::Unavailable, "FINGERPRINT_MISMATCH")
    );
    let took = begun.elapsed();
    assert!(
        took >= Duration::from_millis(550) && took < Duration::from_millis(1500),
        "{took:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permit_that_ran_out_on_the_way_is_renewed() {
    let mesh = ready().await;
    for reason in ["PERMIT_EXPIRED", "PERMIT_INVALID", "PERMIT_MISSING"] {
        mesh.executor
            .then(Act::Refuse(ServiceError::permission_denied(reason, "no")));
        let before = mesh.executor.calls().len();
        mesh.classify(small()).await.unwrap();
        let calls = &mesh.executor.calls()[before..];
        assert_eq!(calls.len(), 2, "{reason}");
        let signature = |index: usize| calls[index].request.permit.as_ref().unwrap().signature.clone();
        assert_ne!(signature(0), signature(1), "a refused permit is not tried again");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fresh_permit_in_the_middle_does_not_start_anew() {
    let mesh = ready().await;
    // The second step finds its permit expired.
    mesh.executor.then(Act::AnswerAfter(Duration::ZERO));
    mesh.executor.then(Act::Refuse(ServiceError::permission_denied(
        "PERMIT_EXPIRED",
        "expired",
    )));
    mesh.classify(wide(255)).await.unwrap();
    let sizes: Vec<usize> = mesh
        .executor
        .calls()
        .iter()
        .map(|call| call.request.sequences.len())
        .collect();
    assert_eq!(sizes, [11, 2, 2, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_binding_that_keeps_changing_is_given_up() {
    let mesh = ready_with(|config| config.swap_wait = Duration::from_secs(10)).await;
    for round in 2..=6 {
        mesh.executor.then(Act::AnswerThenRebind(format!("fp-{round}")));
    }
    let announcing = async {
        loop {
            let fingerprint = mesh.executor.fingerprint.lock().clone();
            mesh.capability
                .change(|snapshot| snapshot.fingerprint = fingerprint.clone());
            mesh.permit(&fingerprint);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let error = tokio::select! {
        result = mesh.classify(wide(255)) => result.unwrap_err(),
        () = announcing => unreachable!(),
    };
    assert_eq!(
        (error.code, error.reason.as_ref()),
        (Code::Unavailable, "FINGERPRINT_MISMATCH")
    );
}
