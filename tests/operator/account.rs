//! An account with the rights that the chart grants with `watchNamespaces`.

use std::fs;

use k8s_openapi::api::rbac::v1::{ClusterRole, RoleBinding};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, PostParams},
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{apiserver::ApiServer, chart::rendered, replica::Operator};

/// The namespace in the rendered chart. It does not have to exist.
const WATCHED: &str = "watched";

/// An account, at first without rights in any watched namespace.
pub(crate) struct Account {
    client: Client,
    name: String,
    directory: TempDir,
    /// The chart's binding for a watched namespace.
    watched: Value,
}

impl Account {
    pub(crate) async fn new(server: &ApiServer, name: &str) -> Self {
        let client = server.client().await;
        let mut watched = None;
        for mut object in rendered("rbac", name, &format!("watchNamespaces={{{WATCHED}}}")) {
            let kind = object["kind"].as_str().unwrap().to_owned();
            if kind.ends_with("Binding") {
                let group = "rbac.authorization.k8s.io";
                object["subjects"] = json!([{ "apiGroup": group, "kind": "User", "name": name }]);
            }
            let namespace = object.pointer("/metadata/namespace").and_then(Value::as_str);
            if namespace == Some(WATCHED) {
                assert!(watched.replace(object).is_none(), "one binding for each namespace");
                continue;
            }
            let resource =
                ApiResource::from_gvk(&GroupVersionKind::gvk("rbac.authorization.k8s.io", "v1", &kind));
            let api: Api<DynamicObject> = match namespace {
                Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
                None => Api::all_with(client.clone(), &resource),
            };
            let object = serde_json::from_value(object).unwrap();
            api.create(&PostParams::default(), &object).await.unwrap();
        }
        let account = Self {
            client,
            name: name.to_owned(),
            directory: tempfile::tempdir().unwrap(),
            watched: watched.expect("the chart binds the role in each watched namespace"),
        };
        let kubeconfig = fs::read_to_string(server.kubeconfig()).unwrap();
        let acting = kubeconfig.replacen("user: {token:", &format!("user: {{as: {name}, token:"), 1);
        assert_ne!(acting, kubeconfig, "the account is another user");
        fs::write(account.kubeconfig(), acting).unwrap();
        account
    }

    fn kubeconfig(&self) -> String {
        self.directory.path().join("kubeconfig").display().to_string()
    }

    fn bindings(&self, namespace: &str) -> Api<RoleBinding> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Grants it the rights for a watched namespace.
    pub(crate) async fn let_into(&self, namespace: &str) {
        let mut binding = self.watched.clone();
        binding["metadata"]["namespace"] = namespace.into();
        let binding = serde_json::from_value(binding).unwrap();
        self.bindings(namespace).create(&PostParams::default(), &binding).await.unwrap();
    }

    /// Grants it only the right to report on the groups of a namespace, not to see its pods.
    pub(crate) async fn let_report_in(&self, namespace: &str) {
        let name = format!("{}-reports", self.name);
        let rules = json!([{ "apiGroups": ["leadergroup.dev"], "resources": ["leadergroups/status"], "verbs": ["patch"] }]);
        let role = json!({ "metadata": { "name": name }, "rules": rules });
        let cluster_roles: Api<ClusterRole> = Api::all(self.client.clone());
        cluster_roles.create(&PostParams::default(), &serde_json::from_value(role).unwrap()).await.unwrap();
        let mut binding = self.watched.clone();
        (binding["metadata"]["namespace"], binding["roleRef"]["name"]) = (namespace.into(), name.into());
        let binding = serde_json::from_value(binding).unwrap();
        self.bindings(namespace).create(&PostParams::default(), &binding).await.unwrap();
    }

    /// Removes these rights, as the deletion of the namespace does.
    pub(crate) async fn shut_out_of(&self, namespace: &str) {
        self.bindings(namespace).delete(&self.name, &DeleteParams::default()).await.unwrap();
    }

    pub(crate) fn start(&self, server: &ApiServer, namespaces: &[&str], database_url: &str) -> Operator {
        self.start_with(server, namespaces, database_url, &[])
    }

    /// The same with more settings.
    pub(crate) fn start_with(
        &self,
        server: &ApiServer,
        namespaces: &[&str],
        database_url: &str,
        variables: &[(&str, &str)],
    ) -> Operator {
        let kubeconfig = self.kubeconfig();
        let own = [("KUBECONFIG", kubeconfig.as_str()), ("LEADERGROUP_DATABASE_URL", database_url)];
        Operator::start_with(server, &namespaces.join(","), &[&own[..], variables].concat())
    }
}
