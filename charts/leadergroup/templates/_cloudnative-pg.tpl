{{/* The spec of the CloudNativePG cluster, without the fields that the user sets. */}}
{{- define "leadergroup.cloudNativePG.spec" -}}
{{- $cnpg := .Values.postgresql.cloudNativePG -}}
instances: {{ $cnpg.instances }}
{{- with $cnpg.image }}
imageName: {{ . | quote }}
{{- end }}
imagePullPolicy: {{ .Values.postgresql.image.pullPolicy }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
bootstrap:
  initdb:
    database: {{ .Values.postgresql.auth.database }}
    owner: {{ .Values.postgresql.auth.username }}
    dataChecksums: true
{{- if or $cnpg.parameters $cnpg.synchronous }}
postgresql:
  {{- with $cnpg.parameters }}
  parameters:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if $cnpg.synchronous }}
  synchronous:
    method: any
    number: {{ $cnpg.synchronous }}
    dataDurability: {{ $cnpg.dataDurability }}
    {{- /* No standby is promoted that may lack a commit. */}}
    failoverQuorum: {{ eq $cnpg.dataDurability "required" }}
  {{- end }}
{{- end }}
affinity:
  enablePodAntiAffinity: true
  podAntiAffinityType: {{ $cnpg.antiAffinity }}
  topologyKey: kubernetes.io/hostname
  {{- with .Values.postgresql.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.postgresql.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: topology.kubernetes.io/zone
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        cnpg.io/cluster: {{ include "leadergroup.cloudNativePG.fullname" . }}
storage:
  size: {{ .Values.postgresql.persistence.size }}
  {{- with .Values.postgresql.persistence.storageClassName }}
  storageClass: {{ . | quote }}
  {{- end }}
resources:
  {{- toYaml .Values.postgresql.resources | nindent 2 }}
{{- end -}}
