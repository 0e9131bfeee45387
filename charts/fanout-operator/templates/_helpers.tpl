{{/* Name of everything the release consists of: the release's own, with the chart's where it does not hold it already. */}}
{{- define "fanout-operator.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 53 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels that never change: the Deployment's selector. */}}
{{- define "fanout-operator.selector" -}}
app.kubernetes.io/name: fanout-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "fanout-operator.labels" -}}
{{ include "fanout-operator.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* The image's reference; the digest wins over the tag. */}}
{{- define "fanout-operator.image" -}}
{{- with .Values.image.registry }}{{ . }}/{{ end -}}
{{- .Values.image.repository -}}
{{- if .Values.image.digest -}}
@{{ .Values.image.digest }}
{{- else -}}
:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}
