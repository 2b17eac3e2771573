{{/* The chart's name, as it appears in labels. */}}
{{- define "leadergroup.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* The release's name, as it appears in the names of objects. At most 40 characters: suffixes follow. */}}
{{- define "leadergroup.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "leadergroup.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: leadergroup
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/*
The labels of an object of the operator, for a list of the root and of the labels that the values set for this object. The
latter count.
*/}}
{{- define "leadergroup.operator.labels" -}}
{{- $root := first . -}}
{{- $labels := include "leadergroup.labels" $root | fromYaml -}}
{{- $labels = merge $labels (include "leadergroup.operator.selectorLabels" $root | fromYaml) -}}
{{- range $key, $value := last . -}}
{{- $_ := set $labels $key $value -}}
{{- end -}}
{{- toYaml $labels -}}
{{- end -}}

{{/* The annotations of an object that has none of its own. */}}
{{- define "leadergroup.annotations" -}}
{{- with .Values.commonAnnotations -}}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}

{{- define "leadergroup.operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "leadergroup.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "leadergroup.postgresql.selectorLabels" -}}
app.kubernetes.io/name: {{ include "leadergroup.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: postgresql
{{- end -}}

{{- define "leadergroup.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "leadergroup.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name: name an existing ServiceAccount, or set serviceAccount.create=true" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The operator's user name at the API server. */}}
{{- define "leadergroup.username" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "leadergroup.serviceAccountName" . }}
{{- end -}}

{{- define "leadergroup.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{- define "leadergroup.postgresql.image" -}}
{{- with .Values.postgresql.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "leadergroup.postgresql.fullname" -}}
{{ include "leadergroup.fullname" . }}-postgresql
{{- end -}}

{{- define "leadergroup.postgresql.secretName" -}}
{{- default (include "leadergroup.postgresql.fullname" .) .Values.postgresql.auth.existingSecret -}}
{{- end -}}

{{/* The CloudNativePG cluster. Its name is part of those of its Services, and has at most 50 characters. */}}
{{- define "leadergroup.cloudNativePG.fullname" -}}
{{ include "leadergroup.fullname" . }}-pg
{{- end -}}

{{/* Fails with an error that says what to write, unless there is exactly one source of the database's URL. */}}
{{- define "leadergroup.database.check" -}}
{{- $mode := .Values.postgresql.mode -}}
{{- $given := or .Values.database.url .Values.database.existingSecret.name -}}
{{- if and .Values.database.url .Values.database.existingSecret.name -}}
{{- fail "database: set either database.url or database.existingSecret.name, not both" -}}
{{- end -}}
{{- if and (ne $mode "External") $given -}}
{{- fail "database: to use your own PostgreSQL, also set postgresql.mode=External" -}}
{{- end -}}
{{- if and (eq $mode "Bundled") .Values.database.passwordSecret.name -}}
{{- fail "database.passwordSecret: for the bundled PostgreSQL set postgresql.auth.existingSecret; for your own, set postgresql.mode=External" -}}
{{- end -}}
{{- if eq $mode "CloudNativePG" -}}
{{- if or .Values.database.passwordSecret.name .Values.database.caSecret.name .Values.postgresql.auth.existingSecret -}}
{{- fail "postgresql.mode is CloudNativePG, which makes the password and the certificate authority itself; leave database.passwordSecret, database.caSecret and postgresql.auth.existingSecret empty" -}}
{{- end -}}
{{- with .Values.postgresql.cloudNativePG -}}
{{- if ge (int .synchronous) (int .instances) -}}
{{- fail "postgresql.cloudNativePG.synchronous: must be less than postgresql.cloudNativePG.instances, because the primary is no standby" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (eq $mode "External") (not $given) -}}
{{- fail "database: postgresql.mode is External; set database.url or database.existingSecret.name" -}}
{{- end -}}
{{- end -}}

{{/* The Secret with the database's URL and its key; nothing for the bundled database, whose URL contains no secret. */}}
{{- define "leadergroup.database.urlSecret" -}}
{{- if eq .Values.postgresql.mode "CloudNativePG" -}}
secretName: {{ include "leadergroup.cloudNativePG.fullname" . }}-app
items:
  - key: uri
    path: url
{{- else if eq .Values.postgresql.mode "External" -}}
{{- if .Values.database.existingSecret.name -}}
secretName: {{ .Values.database.existingSecret.name }}
items:
  - key: {{ .Values.database.existingSecret.key }}
    path: url
{{- else -}}
secretName: {{ include "leadergroup.fullname" . }}-database
items:
  - key: url
    path: url
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The Secret with the database's password and its key, unless the URL contains the password. */}}
{{- define "leadergroup.database.passwordSecret" -}}
{{- if eq .Values.postgresql.mode "Bundled" -}}
secretName: {{ include "leadergroup.postgresql.secretName" . }}
items:
  - key: password
    path: password
{{- else if .Values.database.passwordSecret.name -}}
secretName: {{ .Values.database.passwordSecret.name }}
items:
  - key: {{ .Values.database.passwordSecret.key }}
    path: password
{{- end -}}
{{- end -}}

{{/* The Secret with the authority that signed the database's certificate, and its key. */}}
{{- define "leadergroup.database.caSecret" -}}
{{- if eq .Values.postgresql.mode "CloudNativePG" -}}
secretName: {{ include "leadergroup.cloudNativePG.fullname" . }}-ca
items:
  - key: ca.crt
    path: ca.crt
{{- else if .Values.database.caSecret.name -}}
secretName: {{ .Values.database.caSecret.name }}
items:
  - key: {{ .Values.database.caSecret.key }}
    path: ca.crt
{{- end -}}
{{- end -}}

{{/* A URL that contains a secret is mounted, so that a change needs no restart. That of the bundled database is set. */}}
{{- define "leadergroup.database.env" -}}
{{- if include "leadergroup.database.urlSecret" . -}}
- name: LEADERGROUP_DATABASE_URL_FILE
  value: /etc/leadergroup/database-url/url
{{- else -}}
- name: LEADERGROUP_DATABASE_URL
  value: {{ printf "postgres://%s@%s.%s.svc:5432/%s?sslmode=disable" .Values.postgresql.auth.username (include "leadergroup.postgresql.fullname" .) .Release.Namespace .Values.postgresql.auth.database | quote }}
{{- end }}
{{- if include "leadergroup.database.passwordSecret" . }}
- name: LEADERGROUP_DATABASE_PASSWORD_FILE
  value: /etc/leadergroup/database/password
{{- end }}
{{- if include "leadergroup.database.caSecret" . }}
- name: LEADERGROUP_DATABASE_CA_FILE
  value: /etc/leadergroup/database-ca/ca.crt
{{- end }}
{{- end -}}

{{- define "leadergroup.database.volumeMounts" -}}
{{- if include "leadergroup.database.urlSecret" . }}
- name: database-url
  mountPath: /etc/leadergroup/database-url
  readOnly: true
{{- end }}
{{- if include "leadergroup.database.passwordSecret" . }}
- name: database
  mountPath: /etc/leadergroup/database
  readOnly: true
{{- end }}
{{- if include "leadergroup.database.caSecret" . }}
- name: database-ca
  mountPath: /etc/leadergroup/database-ca
  readOnly: true
{{- end }}
{{- end -}}

{{- define "leadergroup.database.volumes" -}}
{{- with include "leadergroup.database.urlSecret" . }}
- name: database-url
  secret:
    {{- . | nindent 4 }}
{{- end }}
{{- with include "leadergroup.database.passwordSecret" . }}
- name: database
  secret:
    {{- . | nindent 4 }}
{{- end }}
{{- with include "leadergroup.database.caSecret" . }}
- name: database-ca
  secret:
    {{- . | nindent 4 }}
{{- end }}
{{- end -}}

{{/*
The security context of a pod, for a list of the root and the context: without fields that are null, and without the ids
of users and groups where the cluster chooses them.
*/}}
{{- define "leadergroup.podSecurityContext" -}}
{{- $root := first . -}}
{{- $mode := $root.Values.fixedIds -}}
{{- $openshift := $root.Capabilities.APIVersions.Has "security.openshift.io/v1" -}}
{{- $context := deepCopy (last .) -}}
{{- if or (eq $mode "Never") (and (eq $mode "Auto") $openshift) -}}
{{- $context = omit $context "runAsUser" "runAsGroup" "fsGroup" -}}
{{- end -}}
{{- range $field, $value := $context -}}
{{- if kindIs "invalid" $value -}}
{{- $context = omit $context $field -}}
{{- end -}}
{{- end -}}
{{- toYaml $context -}}
{{- end -}}

{{/* The requirements of the restricted Pod Security Standard, and a read-only root file system. */}}
{{- define "leadergroup.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Limits a policy binding to the watched namespaces. */}}
{{- define "leadergroup.watchedNamespaces" -}}
{{- with .Values.watchNamespaces }}
matchResources:
  namespaceSelector:
    matchExpressions:
      - key: kubernetes.io/metadata.name
        operator: In
        values: {{ toJson . }}
{{- end }}
{{- end -}}

{{/* The link of an alert to its section of the runbooks, if their URL is known. */}}
{{- define "leadergroup.runbook" -}}
{{- with .root.Values.metrics.prometheusRule.runbookUrl -}}
runbook_url: {{ printf "%s#%s" . (lower $.alert) | quote }}
{{- end -}}
{{- end -}}
