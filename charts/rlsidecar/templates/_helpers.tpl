{{- define "rlsidecar.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "rlsidecar.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- $name := include "rlsidecar.name" . }}
{{- if contains $name .Release.Name }}{{ .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" }}{{ end }}
{{- end }}
{{- end }}

{{- define "rlsidecar.selectorLabels" -}}
app.kubernetes.io/name: {{ include "rlsidecar.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "rlsidecar.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "rlsidecar.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "rlsidecar.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ default (include "rlsidecar.fullname" .) .Values.serviceAccount.name }}
{{- else }}{{ default "default" .Values.serviceAccount.name }}{{ end }}
{{- end }}

{{- define "rlsidecar.image" -}}
{{- if .Values.image.digest }}{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else }}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "rlsidecar.hasRedis" -}}
{{- if or .Values.redis.url .Values.redis.urlSecret.name }}yes{{ end }}
{{- end }}

{{- define "rlsidecar.configMap" -}}
{{- .Values.limits.existingConfigMap | default (printf "%s-limits" (include "rlsidecar.fullname" . | trunc 56 | trimSuffix "-")) }}
{{- end }}

{{- /* Checks that the schema cannot express. */ -}}
{{- define "rlsidecar.check" -}}
{{- $v := .Values }}
{{- if and $v.redis.url $v.redis.urlSecret.name }}
{{- fail "redis.url and redis.urlSecret are both given; give one" }}
{{- end }}
{{- if and $v.redis.url (contains "@" $v.redis.url) }}
{{- fail "redis.url has credentials, which everyone who may read the pod can see; put the URL into a Secret (redis.urlSecret), or the password (redis.passwordSecret)" }}
{{- end }}
{{- if and $v.limits.files $v.limits.existingConfigMap }}
{{- fail "limits.files and limits.existingConfigMap are both given; give one" }}
{{- end }}
{{- if not (or $v.limits.files $v.limits.existingConfigMap) }}
{{- fail "there are no limits: give limits.files, or the name of a ConfigMap in limits.existingConfigMap" }}
{{- end }}
{{- if and (eq $v.mode "deployment") (not (include "rlsidecar.hasRedis" .)) (not $v.perReplicaLimits) (or $v.autoscaling.enabled (gt (int $v.replicaCount) 1)) }}
{{- fail "without Redis each pod counts for itself, so that N pods admit N times the limit: give redis.url or redis.urlSecret, or accept it with perReplicaLimits=true" }}
{{- end }}
{{- if and (eq $v.onBackendFailure "local") (not $v.localShare) }}
{{- fail "onBackendFailure local needs localShare, each pod's share of a limit while Redis is unreachable, such as 0.25 for four pods" }}
{{- end }}
{{- if and (or $v.tls.clientCertificates $v.tls.clientName) (not $v.tls.secret) }}
{{- fail "tls.clientCertificates and tls.clientName need tls.secret" }}
{{- end }}
{{- if and $v.service.headless (or (ne (int $v.service.grpcPort) 8081) (ne (int $v.service.httpPort) 8080)) }}
{{- fail "service.headless leads to the pods' own ports, 8081 and 8080: service.grpcPort and service.httpPort cannot be others" }}
{{- end }}
{{- if and $v.metrics.serviceMonitor.enabled (not $v.metrics.enabled) }}
{{- fail "metrics.serviceMonitor needs metrics.enabled" }}
{{- end }}
{{- if and $v.tls.clientName (not $v.tls.clientCertificates) }}
{{- fail "tls.clientName needs tls.clientCertificates" }}
{{- end }}
{{- end }}
