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

{{/* Fails with an error that says what to write, unless there is exactly one source of the database's URL. */}}
{{- define "leadergroup.database.check" -}}
{{- $given := or .Values.database.url .Values.database.existingSecret.name -}}
{{- if and .Values.database.url .Values.database.existingSecret.name -}}
{{- fail "database: set either database.url or database.existingSecret.name, not both" -}}
{{- end -}}
{{- if and .Values.postgresql.enabled $given -}}
{{- fail "database: to use your own PostgreSQL, also set postgresql.enabled=false" -}}
{{- end -}}
{{- if and .Values.postgresql.enabled .Values.database.passwordSecret.name -}}
{{- fail "database.passwordSecret: for the bundled PostgreSQL set postgresql.auth.existingSecret; for your own, set postgresql.enabled=false" -}}
{{- end -}}
{{- if not (or .Values.postgresql.enabled $given) -}}
{{- fail "database: postgresql.enabled is false; set database.url or database.existingSecret.name" -}}
{{- end -}}
{{- end -}}

{{/*
The source of the database's URL. The URL of the bundled database contains no secret and is set directly. Any other URL is
mounted from a Secret, so that a change needs no restart.
*/}}
{{- define "leadergroup.database.env" -}}
{{- if .Values.postgresql.enabled -}}
- name: LEADERGROUP_DATABASE_URL
  value: {{ printf "postgres://%s@%s.%s.svc:5432/%s?sslmode=disable" .Values.postgresql.auth.username (include "leadergroup.postgresql.fullname" .) .Release.Namespace .Values.postgresql.auth.database | quote }}
{{- else -}}
- name: LEADERGROUP_DATABASE_URL_FILE
  value: /etc/leadergroup/database-url/url
{{- end }}
{{- if or .Values.postgresql.enabled .Values.database.passwordSecret.name }}
- name: LEADERGROUP_DATABASE_PASSWORD_FILE
  value: /etc/leadergroup/database/password
{{- end }}
{{- if .Values.database.caSecret.name }}
- name: LEADERGROUP_DATABASE_CA_FILE
  value: /etc/leadergroup/database-ca/ca.crt
{{- end }}
{{- end -}}

{{- define "leadergroup.database.volumeMounts" -}}
{{- if not .Values.postgresql.enabled }}
- name: database-url
  mountPath: /etc/leadergroup/database-url
  readOnly: true
{{- end }}
{{- if or .Values.postgresql.enabled .Values.database.passwordSecret.name }}
- name: database
  mountPath: /etc/leadergroup/database
  readOnly: true
{{- end }}
{{- if .Values.database.caSecret.name }}
- name: database-ca
  mountPath: /etc/leadergroup/database-ca
  readOnly: true
{{- end }}
{{- end -}}

{{- define "leadergroup.database.volumes" -}}
{{- if not .Values.postgresql.enabled }}
- name: database-url
  secret:
    {{- if .Values.database.existingSecret.name }}
    secretName: {{ .Values.database.existingSecret.name }}
    items:
      - key: {{ .Values.database.existingSecret.key }}
        path: url
    {{- else }}
    secretName: {{ include "leadergroup.fullname" . }}-database
    items:
      - key: url
        path: url
    {{- end }}
{{- end }}
{{- if .Values.postgresql.enabled }}
- name: database
  secret:
    secretName: {{ include "leadergroup.postgresql.secretName" . }}
    items:
      - key: password
        path: password
{{- else if .Values.database.passwordSecret.name }}
- name: database
  secret:
    secretName: {{ .Values.database.passwordSecret.name }}
    items:
      - key: {{ .Values.database.passwordSecret.key }}
        path: password
{{- end }}
{{- if .Values.database.caSecret.name }}
- name: database-ca
  secret:
    secretName: {{ .Values.database.caSecret.name }}
    items:
      - key: {{ .Values.database.caSecret.key }}
        path: ca.crt
{{- end }}
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
