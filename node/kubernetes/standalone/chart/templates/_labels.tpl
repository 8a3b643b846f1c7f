{{/* Labels of the pods of a component. Arguments: the root, the name, the component. */}}
{{- define "granary.podLabels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ index . 1 }}
app.kubernetes.io/instance: {{ $root.Release.Name | quote }}
app.kubernetes.io/component: {{ index . 2 }}
app.kubernetes.io/part-of: granary
{{- end }}

{{/* Labels of an object of a component. The same arguments. */}}
{{- define "granary.labels" -}}
{{- $root := index . 0 -}}
{{ include "granary.podLabels" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "granary.image" -}}
{{- $image := .Values.image -}}
{{ $image.repository }}
{{- if or $image.tag (not $image.digest) }}:{{ $image.tag | default .Chart.AppVersion }}{{ end }}
{{- with $image.digest }}@{{ . }}{{ end }}
{{- end }}

{{/* The image is built for one architecture. Argument: the labels of the values. */}}
{{- define "granary.nodeSelector" -}}
{{ merge (dict "kubernetes.io/os" "linux" "kubernetes.io/arch" "amd64") . | toJson }}
{{- end }}
