//! A real API server takes every sample and refuses every bad object with a message that names the field.

use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{Method, Request};
use fanout_tests::services::api_server::Write;
use fanout_tests::services::{api_server, dirs};
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

#[tokio::test]
async fn every_sample_is_accepted_and_filled_with_defaults() {
    let server = api_server();
    let client = server.client().await;
    let namespace = server.namespace("samples").await;
    let mut accepted = 0;
    for (file, object) in all_documents("manifests/samples") {
        let object = create(&client, &namespace, object)
            .await
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        if object
            .types
            .as_ref()
            .is_some_and(|types| types.kind != "Secret")
        {
            assert_eq!(
                object.data["status"],
                json!({"observedGeneration": -1}),
                "{}",
                file.display()
            );
            assert!(
                object.data["spec"]["suspend"].is_boolean(),
                "a default is stored"
            );
        }
        accepted += 1;
    }
    assert!(accepted >= 7, "only {accepted} samples");
}

#[tokio::test]
async fn every_bad_object_is_refused_with_a_message_that_names_the_field() {
    let server = api_server();
    let client = server.client().await;
    let namespace = server.namespace("bad").await;
    let mut wrong = Vec::new();
    let files = yaml_files("crds/tests/bad");
    assert!(files.len() > 90, "only {} files", files.len());
    for (number, file) in files.iter().enumerate() {
        let text = std::fs::read_to_string(file).expect("readable");
        let (field, message) = (header(&text, "# field: "), header(&text, "# message: "));
        let mut objects = documents(&text);
        for object in &mut objects {
            // A name of its own, unless the name is what is wrong.
            let name = object["metadata"]["name"].as_str().expect("a name");
            if name.len() < 40 {
                object["metadata"]["name"] = json!(format!("{name}-{number}"));
            }
        }
        let last = objects.pop().expect("an object");
        let answer = match objects.pop() {
            None => create(&client, &namespace, last).await,
            Some(first) => match create(&client, &namespace, first).await {
                Ok(_) => update(&client, &namespace, last).await,
                Err(error) => {
                    wrong.push(format!(
                        "{}: the first object must be accepted: {error}",
                        file.display()
                    ));
                    continue;
                }
            },
        };
        match answer {
            Ok(_) => wrong.push(format!("{}: accepted", file.display())),
            Err(error) => {
                let said = error.to_string();
                if !said.contains(message) || (field != "<root>" && !said.contains(field)) {
                    wrong.push(format!(
                        "{}: expected {field}: {message}; found {said}",
                        file.display()
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn subscriptions_are_selected_by_their_topic() {
    let server = api_server();
    let client = server.client().await;
    let namespace = server.namespace("selected").await;
    for (name, topic) in [("one", "posts"), ("two", "likes")] {
        let object = subscription(name, topic);
        create(&client, &namespace, object).await.expect("accepted");
    }
    let api: Api<fanout_crds::Subscription> = Api::namespaced(client, &namespace);
    let list = api
        .list(&kube::api::ListParams::default().fields("spec.topicRef.name=likes"))
        .await
        .expect("a list");
    let names: Vec<String> = list.iter().map(kube::ResourceExt::name_any).collect();
    assert_eq!(names, ["two"]);
}

#[tokio::test]
async fn a_status_of_the_types_is_stored_as_written() {
    use fanout_crds::fanout_topic::{OutboxStatus, RelayStatus};
    let server = api_server();
    let client = server.client().await;
    let namespace = server.namespace("status").await;
    let object = fanout_topic("posts");
    create(&client, &namespace, object).await.expect("accepted");
    let status = fanout_crds::FanoutTopicStatus {
        observed_generation: Some(1),
        broker: Some("Kafka".into()),
        outbox: Some(OutboxStatus {
            pending: Some(7),
            oldest_event_time: Some(
                serde_json::from_value(json!("2026-01-02T03:04:05Z")).expect("a time"),
            ),
        }),
        relay: Some(RelayStatus {
            ready: Some("2/2".into()),
        }),
        subscriptions: Some(3),
        parked: Some(5),
        ..Default::default()
    };
    let api: Api<fanout_crds::FanoutTopic> = Api::namespaced(client, &namespace);
    let patch =
        json!({"apiVersion": "fanout.dev/v1alpha1", "kind": "FanoutTopic", "status": status});
    let stored = api
        .patch_status(
            "posts",
            &PatchParams::apply("fanout-tests/status").force(),
            &Patch::Apply(&patch),
        )
        .await
        .expect("accepted");
    assert_eq!(stored.status, Some(status));
    assert_eq!(
        stored.metadata.generation,
        Some(1),
        "a status changes no generation"
    );
}

#[tokio::test]
async fn kubectl_get_shows_what_the_status_says() {
    let server = api_server();
    let client = server.client().await;
    let namespace = server.namespace("columns").await;
    let objects = [fanout_topic("posts"), subscription("search", "posts")];
    let condition = json!({
        "type": "Ready", "status": "False", "reason": "Progressing", "message": "wait",
        "lastTransitionTime": "2026-01-02T03:04:05Z",
    });
    let day_ago =
        (k8s_openapi::jiff::Timestamp::now() - std::time::Duration::from_hours(25)).to_string();
    let statuses = [
        json!({
            "broker": "Kafka", "outbox": {"pending": 7, "oldestEventTime": day_ago}, "relay": {"ready": "1/2"},
            "subscriptions": 3, "conditions": [condition],
        }),
        json!({
            "sink": "webhook", "depth": 9, "oldestEventTime": day_ago, "workers": "0/1", "ratePerSecond": 5,
            "conditions": [condition],
        }),
    ];
    let rows = [
        [
            "posts",
            "Kafka",
            "False",
            "7",
            "25h",
            "1/2",
            "3",
            "Progressing",
        ],
        [
            "search",
            "posts",
            "webhook",
            "False",
            "9",
            "25h",
            "0/1",
            "Progressing",
        ],
    ];
    for ((object, status), expected) in objects.into_iter().zip(statuses).zip(rows) {
        let created = create(&client, &namespace, object.clone())
            .await
            .expect("accepted");
        let (api, _) = typed(&client, &namespace, object.clone());
        let patch =
            json!({"apiVersion": object["apiVersion"], "kind": object["kind"], "status": status});
        api.patch_status(
            &created.name_any(),
            &PatchParams::apply("fanout-tests").force(),
            &Patch::Apply(patch),
        )
        .await
        .expect("accepted");
        let request = Request::get(api.resource_url())
            .header(ACCEPT, "application/json;as=Table;v=v1;g=meta.k8s.io")
            .body(Vec::new())
            .expect("a request");
        let table: Value = client.request(request).await.expect("a table");
        let cells: Vec<String> = table["rows"][0]["cells"]
            .as_array()
            .expect("a row")
            .iter()
            .map(|cell| {
                cell.as_str()
                    .map_or_else(|| cell.to_string(), str::to_owned)
            })
            .collect();
        assert_eq!(cells[..expected.len()], expected, "{table}");
        assert_eq!(
            cells.last().map(String::as_str),
            Some("wait"),
            "the message comes last and is for -o wide"
        );
    }
}

#[tokio::test]
async fn writes_are_counted_per_user_agent_and_reads_are_not() {
    let server = api_server();
    let namespace = server.namespace("audit").await;
    let agent = format!("agent-{namespace}");
    let kubeconfig = server.kubeconfig_of_service_account(&namespace, "somebody");
    let mark = server.mark();
    let client = server.client_of(&kubeconfig, &agent).await;
    let api: Api<fanout_crds::Subscription> = Api::namespaced(client.clone(), &namespace);
    let refused = api
        .list(&kube::api::ListParams::default())
        .await
        .expect_err("no right was given");
    assert!(refused.to_string().contains("is forbidden"), "{refused}");
    let object = subscription("one", "posts");
    create(&client, &namespace, object)
        .await
        .expect_err("no right was given");
    let mine: Vec<Write> = server
        .writes_since(mark)
        .into_iter()
        .filter(|write| write.user_agent == agent)
        .collect();
    let [found] = &mine[..] else {
        panic!("{mine:?}");
    };
    let expected = Write {
        user_agent: agent,
        user: format!("system:serviceaccount:{namespace}:somebody"),
        verb: "create".to_owned(),
        resource: "subscriptions.fanout.dev".to_owned(),
        namespace,
        // The server refuses before it reads what the request is about.
        name: String::new(),
        status: 403,
        at: found.at,
    };
    assert_eq!(*found, expected);
}

fn fanout_topic(name: &str) -> Value {
    json!({
        "apiVersion": "fanout.dev/v1alpha1", "kind": "FanoutTopic", "metadata": {"name": name},
        "spec": {
            "source": {"postgres": {"urlSecretRef": {"name": "db", "key": "url"}, "table": "public.outbox"}},
            "broker": {"kafka": {"bootstrapServers": "kafka:9092"}},
        },
    })
}

fn subscription(name: &str, topic: &str) -> Value {
    json!({
        "apiVersion": "fanout.dev/v1alpha1", "kind": "Subscription", "metadata": {"name": name},
        "spec": {"topicRef": {"name": topic}, "sink": {"webhook": {"url": "https://example.com/"}}},
    })
}

async fn create(client: &Client, namespace: &str, object: Value) -> kube::Result<DynamicObject> {
    let (api, object) = typed(client, namespace, object);
    send(client, Method::POST, api.resource_url(), &object).await
}

/// Replaces the object, as `kubectl replace` would.
async fn update(client: &Client, namespace: &str, object: Value) -> kube::Result<DynamicObject> {
    let (api, mut object) = typed(client, namespace, object);
    let name = object.name_any();
    object.metadata.resource_version = api.get(&name).await?.metadata.resource_version;
    send(
        client,
        Method::PUT,
        &format!("{}/{name}", api.resource_url()),
        &object,
    )
    .await
}

/// With strict field validation, as kubectl asks for it; the typed calls can't.
async fn send(
    client: &Client,
    method: Method,
    url: &str,
    object: &DynamicObject,
) -> kube::Result<DynamicObject> {
    let request = Request::builder()
        .method(method)
        .uri(format!("{url}?fieldValidation=Strict"))
        .header(CONTENT_TYPE, "application/json")
        .body(serde_json::to_vec(object).expect("JSON"))
        .expect("a request");
    client.request(request).await
}

fn typed(
    client: &Client,
    namespace: &str,
    mut object: Value,
) -> (Api<DynamicObject>, DynamicObject) {
    object["metadata"]["namespace"] = json!(namespace);
    let object: DynamicObject = serde_json::from_value(object).expect("an object");
    let types = object.types.clone().expect("apiVersion and kind");
    let kind = GroupVersionKind::try_from(&types).expect("a group, version and kind");
    (
        Api::namespaced_with(client.clone(), namespace, &ApiResource::from_gvk(&kind)),
        object,
    )
}

fn all_documents(folder: &str) -> Vec<(PathBuf, Value)> {
    yaml_files(folder)
        .into_iter()
        .flat_map(|file| {
            let text = std::fs::read_to_string(&file).expect("readable");
            documents(&text)
                .into_iter()
                .map(move |object| (file.clone(), object))
                .collect::<Vec<_>>()
        })
        .collect()
}

fn yaml_files(folder: &str) -> Vec<PathBuf> {
    let folder = dirs::tests_dir()
        .parent()
        .expect("the repository")
        .join(folder);
    let is_yaml = |path: &Path| {
        path.extension()
            .is_some_and(|extension| extension == "yaml")
    };
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| is_yaml(path))
        .collect();
    files.sort();
    files
}

fn documents(text: &str) -> Vec<Value> {
    serde_yaml::from_multiple(text).expect("YAML")
}

fn header<'a>(text: &'a str, prefix: &str) -> &'a str {
    text.lines()
        .find_map(|line| line.strip_prefix(prefix))
        .expect("the first lines name field and message")
}
