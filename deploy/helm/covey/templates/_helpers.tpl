{{- define "covey.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "covey.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "covey.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "covey.metrics" -}}
{{- if .Values.metricsPort }}
- --metrics=0.0.0.0:{{ .Values.metricsPort }}
- --metrics-public
{{- end }}
{{- end }}

{{- define "covey.ports" -}}
{{- if .Values.metricsPort }}
ports:
  - name: metrics
    containerPort: {{ .Values.metricsPort }}
{{- end }}
{{- end }}
